"""`statemix train` and `statemix eval`."""

import json
import sys

import pytest
from runs import SMALL_RUN, TINY

from statemix.cli import main
from statemix.commands.train import Train, read_options
from statemix.commands.views.eval import fitting_lengths
from statemix.runs.plugins import load_file
from statemix.tasks import TASKS, find_task
from statemix.train.trained import load_trained


def test_commands(tmp_path, capsys):
    main(["train", "s3", *SMALL_RUN, "--runs", str(tmp_path), "--channel-mixer", "none"])
    printed = capsys.readouterr().out
    assert "test" in printed
    (directory,) = tmp_path.iterdir()
    out = tmp_path / "eval.jsonl"
    main(["eval", str(directory), "--lengths", "5", "50", "--examples", "20", "--out", str(out)])
    assert [json.loads(line)["length"] for line in out.read_text().splitlines()] == [5, 50]
    assert len(json.loads(out.read_text().splitlines()[1])["by_position"]) == 50
    main(["inspect", str(directory)])
    printed = capsys.readouterr().out
    assert "layer 1: |λ| up to" in printed
    config, task, model = load_trained(directory)
    assert (config.task, task.name) == ("s3", "s3")
    assert not model.training


def test_evaluation_leaves_out_invalid_lengths(tmp_path, capsys):
    main(["train", "compress", *SMALL_RUN, "--runs", str(tmp_path)])
    (directory,) = tmp_path.iterdir()
    out = tmp_path / "eval.jsonl"
    main(["eval", str(directory), "--lengths", "1", "5", "9", "--examples", "4", "--out", str(out)])
    (line,) = out.read_text().splitlines()
    assert (
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))[
            "by_position"
        ][-1]
        is None
    )
    assert capsys.readouterr().err.replace("\n", " ").count("left out") == 2


@pytest.mark.parametrize(
    ("task", "longest", "lengths", "expected"),
    [
        ("mod_arith", None, (16, 64, 256), [17, 65, 257]),
        ("mod_arith", None, (16, 17, 64), [17]),  # one length is valid
        ("mod_arith", None, (16, 16, 18), [17, 19]),
        ("recall", None, (5, 3), [6, 4]),
        ("compress", 5, (6, 64), [5]),
        ("compress", 5, (16, 64), [5]),  # the only length of this model
        ("s3", None, (16, 16, 4), [16, 4]),
    ],
)
def test_invalid_lengths_are_replaced_by_neighbours_if_none_is_valid(
    capsys, task, longest, lengths, expected
):
    assert fitting_lengths(find_task(task), longest, lengths) == expected
    printed = capsys.readouterr().err.replace("\n", " ")
    assert printed.count("left out") + printed.count("replaced by") == sum(
        length not in expected for length in lengths
    )


def test_modular_arithmetic_trains_and_is_evaluated_by_default(tmp_path, capsys):
    main(
        [
            "train",
            "mod_arith",
            "--examples",
            "32",
            "--width",
            "8",
            "--epochs",
            "1",
            "--blocks",
            "2",
            "--runs",
            str(tmp_path),
        ]
    )
    (directory,) = tmp_path.iterdir()
    main(["eval", str(directory), "--examples", "2"])
    assert "1025" in capsys.readouterr().out


@pytest.mark.parametrize("mixer", ["lstm", "hlru", "mamba2"])
def test_any_mixer_trains_from_the_command_line(tmp_path, capsys, mixer):
    options = {"lstm": ["hidden=4"], "hlru": [], "mamba2": ["d_state=4", "head_dim=4"]}[mixer]
    main(
        [
            "train",
            "parity",
            *TINY,
            "--mixer",
            mixer,
            "--options",
            *options,
            "--runs",
            str(tmp_path),
            "--epochs",
            "1",
        ]
    )
    assert "parity" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "s33"], "The group S33 is out of range"),
        (["train", "permute"], "Unknown task 'permute'. Available: "),
        (["train", "s3", "--mixer", "bdrlu"], "bdrlu.*bdlru"),
        (["train", "s3", "--options", "sizes=3"], "sizes.*n_blocks"),
        (["train", "s3", "--options", "size"], "--options takes key=value, got 'size'"),
        (["train", "copy", "--length", "20"], "no examples of length 20"),
        (["train", "s3", "--batch", "0"], "`batch` must be at least 1, got 0"),
        (
            ["train", "s3", "--threads", "100000"],
            "--threads must be at most 1024, got 100000; this machine has ",
        ),
        (
            ["train", "s3", "--weight-decay", "inf"],
            "`weight_decay` must be finite and not negative, got inf",
        ),
        (
            ["train", "s3", "--mixer", "lstm", "--options", "hidden=x"],
            "`hidden` of mixer 'lstm' must be of type int, got 'x'",
        ),
        (
            ["train", "s3", "--mixer", "mamba", "--options", "output_gate=no"],
            r"must be of type bool \(true or false\), got 'no'",
        ),
        (
            ["train", "s3", "--mixer", "mamba", "--options", "conv=-1"],
            "`conv` must be a non-negative number of steps .*, got -1",
        ),
        (
            ["train", "s3", "--mixer", "lru", "--options", "n=4", "r_min=1"],
            "must satisfy 0 <= r_min < r_max <= 1, got 1 and 1.0",
        ),
        (["train", "s3", "--clip", "nan"], "`clip` must be a number, got nan"),
        (["train", "s3", "--seed", "-5"], "`seed` must be finite and not negative"),
        (["train", "s3", "--weight-decay", "-1"], "`weight_decay` must be finite and not negative"),
        (["train", "s3", "--files", "broken.py"], "broken.py, line 1: "),
        (["train", "s3", "--runs", "broken.py"], "Not a directory: broken.py"),
        (["eval", "nowhere"], "nowhere is not the directory of a run"),
        (["inspect", "nowhere"], "nowhere is not the directory of a run"),
        (["sweep", "nowhere.py"], "There is no experiment nowhere.py"),
        (
            ["sweep", "x.py", "--job-idx", "2", "--num-jobs", "2"],
            "--job-idx must be in 0 .. 1, got 2",
        ),
    ],
)
def test_invalid_commands_raise(tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text("def (")
    with pytest.raises(SystemExit, match=message):
        main(arguments)


class FakeTracker:
    """Records the calls that wandb or trackio would receive."""

    def __init__(self):
        self.calls = []

    def init(self, **options):
        self.calls.append(("init", options["name"]))

    def log(self, metrics, step):
        self.calls.append(("log", step, sorted(metrics)))

    def finish(self):
        self.calls.append(("finish",))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_receive_every_epoch(tmp_path, monkeypatch, name):
    fake = FakeTracker()
    monkeypatch.setitem(sys.modules, name, fake)
    main(["train", "s3", *SMALL_RUN, "--runs", str(tmp_path), "--track", name])
    assert [call[0] for call in fake.calls] == ["init", "log", "log", "finish"]
    assert {"loss", "train", "validation"} <= set(fake.calls[1][2])


def test_a_missing_tracker_names_its_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit, match=r"'wandb' is not installed.*pip install .*\[track\]'"):
        main(["train", "s3", *SMALL_RUN, "--runs", str(tmp_path), "--track", "wandb"])


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is only in the extra `track`")
    main(["train", "s3", *SMALL_RUN, "--runs", str(tmp_path), "--track", "tensorboard"])
    assert list(tmp_path.glob("*/tensorboard/*"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "from statemix import register_mixer\n\n@register_mixer('x')\nclass X: pass\n",
            "line 3: A mixer must be a subclass of nn.Module",
        ),
        ("import no_such_package\n", "line 1: No module named 'no_such_package'"),
    ],
)
def test_files_that_cannot_be_imported_raise(tmp_path, text, message):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(SystemExit, match=message):
        main(["train", "s3", "--files", str(file), "--runs", str(tmp_path / "runs")])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x = 1\nimport no_such_package\n",
            "^statemix: mine.py, line 2: No module named 'no_such_package'",
        ),
        ("def (\n", "^statemix: mine.py, line 1: "),
        ("import broken_helper\n", "broken_helper.py, line 1: "),
    ],
)
def test_lines_of_files_with_a_relative_path(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "broken_helper.py").write_text("def (\n")
    with pytest.raises(SystemExit, match=message):
        main(["train", "s3", "--files", "mine.py", "--runs", "runs"])


@pytest.mark.parametrize("name", ["mine.py", "with_sys_path.py"])
def test_files_can_import_their_neighbours(tmp_path, monkeypatch, name):
    (tmp_path / "helper_of_this_test.py").write_text("VALUE = 7\n")
    leave = "import sys\nsys.path.pop(0)\n" if name == "with_sys_path.py" else ""
    (tmp_path / name).write_text(f"from helper_of_this_test import VALUE\n{leave}")
    before = list(sys.path)
    assert load_file(tmp_path / name).VALUE == 7
    assert sys.path == before
    monkeypatch.delitem(sys.modules, "helper_of_this_test")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (OSError(28, "No space left on device"), "statemix: No space left on device."),
        (OSError(28, "No space left on device", "out"), "statemix: No space left on device: out."),
        (OSError("could not get source"), "statemix: could not get source."),
        (OSError(), "statemix: OSError."),
    ],
)
def test_system_errors_are_reported_in_a_sentence(monkeypatch, error, sentence):
    def fail(self):
        raise error

    monkeypatch.setattr(Train, "run", fail)
    with pytest.raises(SystemExit) as end:
        main(["train", "s3"])
    assert end.value.code == sentence


OWN_TASK = """
import numpy as np
from statemix.tasks import Examples, Task, register_task

@register_task("changing_task")
def changing_task() -> Task:
    def draw(count, length, rng):
        inputs = rng.integers(0, 2, (count, length))
        return Examples(inputs, {targets})
    return Task("changing_task", vocab=2, classes=2, draw=draw, length=5)
"""


def test_a_finished_run_is_reported(tmp_path, capsys, monkeypatch):
    """If the file that registers its task changes, the run raises until it is trained again."""
    file = tmp_path / "changing.py"
    command = [
        "train",
        "changing_task",
        *SMALL_RUN,
        "--runs",
        str(tmp_path / "runs"),
        "--files",
        str(file),
    ]

    def run(targets, *more):
        for name in [name for name in sys.modules if name.startswith("statemix_file_")]:
            del sys.modules[name]  # as in a new process
        file.write_text(OWN_TASK.format(targets=targets))
        main([*command, *more])
        return "already finished; nothing was trained. Add --no-resume" in " ".join(
            capsys.readouterr().out.split()
        )

    try:
        assert not run("inputs")
        assert run("inputs")
        with pytest.raises(
            SystemExit,
            match=r"changing.py changed since the run .* started. Train it again with --no-resume",
        ):
            run("1 - inputs")
        assert run("inputs")
        assert not run("1 - inputs", "--no-resume")
        assert run("1 - inputs")
    finally:
        TASKS.pop("changing_task", None)


def test_options_are_read_as_json_or_python():
    pairs = ("a=1", "b=0.5", "c=true", "d=False", "e=True", "f=text", 'g="True"', "h=[1, 2]")
    expected = {
        "a": 1,
        "b": 0.5,
        "c": True,
        "d": False,
        "e": True,
        "f": "text",
        "g": "True",
        "h": [1, 2],
    }
    assert read_options(pairs, "--options") == expected
