"""Sweeps: no cell runs twice, no result is lost, and a failed run does not affect others."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from statemix.cli import main
from statemix.models import ModelConfig
from statemix.runs.lock import Busy, entered
from statemix.sweep import Entry, Ledger, choose, grid, load_cells, load_places, share, sweep
from statemix.sweep import engines as engines_module
from statemix.sweep.ledger import make_entry
from statemix.sweep.plan import Where
from statemix.sweep.worker import Workspace, perform
from statemix.train import RunConfig

TINY = RunConfig(
    "s2",
    ModelConfig("bdlru", {"n_blocks": 2, "block_size": 2}, width=8, channel_mixer="none"),
    train_examples=64,
    test_examples=32,
    length=4,
    batch=32,
    epochs=2,
    patience=0,
)
BROKEN = replace(TINY, model=replace(TINY.model, options={"blocks": 2}))  # unknown option


def entry(config, token, validation):
    return make_entry(config, {"test": {"token": token}, "validation": {"token": validation}}, None)


def test_a_sweep_runs_only_cells_missing_in_the_ledger(tmp_path):
    ledger, runs = Ledger(tmp_path / "ledger.jsonl"), tmp_path / "runs"
    configs = list(grid(TINY, [1e-3, 1e-2], range(2)))
    summary = sweep(configs[:2], ledger, runs, engine="local", workers=2)
    assert (summary.done, summary.failed, summary.already_done) == (2, 0, 0)
    summary = sweep(configs, ledger, runs, engine="local", workers=2)
    assert (summary.done, summary.failed, summary.already_done) == (2, 0, 2)
    entries, complaints = ledger.read()
    assert {e.id for e in entries} == {config.id for config in configs}
    assert complaints == []
    assert all(e.result["test"]["token"] >= 0 and e.commit for e in entries)


def test_a_failed_run_is_recorded_with_its_reason(tmp_path, capsys):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    summary = sweep([BROKEN, TINY], ledger, tmp_path / "runs", engine="local", workers=1)
    assert (summary.done, summary.failed) == (1, 1)
    failed = next(e for e in ledger.read()[0] if e.status == "failed")
    assert "Unknown option of mixer 'bdlru': 'blocks'" in failed.reason
    assert ledger.done() == {TINY.id}


def test_a_killed_worker_loses_only_its_run(tmp_path, monkeypatch):
    endless = replace(TINY, epochs=10**6, train_examples=32, solved=2.0)
    metrics, killers = tmp_path / "runs" / endless.id / "metrics.jsonl", []
    original = engines_module.Worker.send

    def kill_during_the_run(pid):
        while not (metrics.exists() and metrics.read_text()):
            time.sleep(0.05)
        os.kill(pid, signal.SIGKILL)

    def give(self, config, *, wait):
        original(self, config, wait=wait)
        if config.id == endless.id:
            killers.append(threading.Thread(target=kill_during_the_run, args=(self.process.pid,)))
            killers[-1].start()

    monkeypatch.setattr(engines_module.Worker, "send", give)
    ledger = Ledger(tmp_path / "ledger.jsonl")
    configs = [endless, TINY, replace(TINY, seed=1), replace(TINY, seed=2)]
    summary = sweep(configs, ledger, tmp_path / "runs", engine="local", workers=2)
    killers[0].join()
    assert len(killers) == 1
    assert (summary.done, summary.failed) == (3, 1)
    failed = next(e for e in ledger.read()[0] if e.status == "failed")
    assert failed.id == endless.id
    assert "SIGKILL" in failed.reason


@pytest.mark.parametrize("when", ["before a run", "during a run"])
def test_a_worker_exits_if_its_sweep_was_killed(tmp_path, monkeypatch, when):
    # The worker runs in this process, which must not ignore interrupts from then on.
    monkeypatch.setattr(engines_module.signal, "signal", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    if when == "during a run":
        ours.send((TINY.to_json(), False))
    ours.close()
    engines_module.serve(theirs, Workspace(Ledger(tmp_path / "ledger.jsonl"), tmp_path))
    assert (tmp_path / TINY.id).exists() == (when == "during a run")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    """If the ledger cannot be written, a run fails; the next sweep records it without training."""
    ledger = Ledger(tmp_path / "ledger.jsonl")

    def full(self, entry):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "append", full)
        assert sweep([TINY], ledger, tmp_path / "runs", engine="local", workers=1).failed == 1
    written = (tmp_path / "runs" / TINY.id / "result.json").stat().st_mtime
    assert sweep([TINY], ledger, tmp_path / "runs", engine="local", workers=1).done == 1
    assert (tmp_path / "runs" / TINY.id / "result.json").stat().st_mtime == written


def test_damaged_lines_are_reported_and_skipped(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(entry(TINY, 0.5, 0.5))
    with ledger.path.open("a") as file:
        file.write('{"id": "abc", "status"')
    ledger.append(entry(replace(TINY, seed=1), 0.5, 0.5))
    entries, complaints = ledger.read()
    assert [e.id for e in entries] == [TINY.id, replace(TINY, seed=1).id]
    assert len(complaints) == 1
    assert "line 2 is damaged and was skipped" in complaints[0]


def test_many_threads_append_complete_lines(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    threads = [
        threading.Thread(target=ledger.append, args=(entry(replace(TINY, seed=seed), 0.1, 0.1),))
        for seed in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entries, complaints = ledger.read()
    assert len(entries) == 20
    assert complaints == []


def test_two_processes_cannot_train_the_same_run(tmp_path):
    with (
        entered(tmp_path / "run"),
        pytest.raises(Busy, match="Another process is training the run in .*run. Wait"),
        entered(tmp_path / "run"),
    ):
        pass
    with entered(tmp_path / TINY.id):
        assert perform(
            TINY, Workspace(Ledger(tmp_path / "ledger.jsonl"), tmp_path), lambda report: None
        ) == (None, None)


def test_a_sweep_waits_for_a_cell_that_another_process_runs(tmp_path, capfd):
    """The sweep runs the free cells, waits for the other one, and runs it if it has no result."""
    path, ledger, runs = tmp_path / "experiment.py", tmp_path / "ledger.jsonl", tmp_path / "runs"
    path.write_text(EXPERIMENT)
    ids = [config.id for config in load_cells(path)]

    def hold(claim):
        with claim:
            held.set()
            while len(Ledger(ledger).read()[0]) < 2:
                time.sleep(0.05)

    for lock in (Ledger(ledger).claim(ids[1]), entered(runs / ids[1])):
        held = threading.Event()
        holder = threading.Thread(target=hold, args=(lock,))
        holder.start()
        held.wait()
        main(["sweep", str(path), "--ledger", str(ledger), "--runs", str(runs), "--workers", "1"])
        holder.join()
        out, err = capfd.readouterr()
        assert "3 runs done, 0 failed, 0 were in the ledger," in " ".join(out.split())
        assert f"another process runs {ids[1]}: waiting for it" in err
        assert [entry.id for entry in Ledger(ledger).read()[0]] == [ids[0], ids[2], ids[1]]
        ledger.unlink()


@pytest.mark.parametrize("kind", ["kill", "share"])
def test_every_cell_is_run_and_recorded_once(tmp_path, kind):
    """Kill and restart fifty sweeps at once, or run fifty pairs of sweeps with one ledger each."""
    command = [sys.executable, str(Path(__file__).with_name("sweep_trials.py")), kind, "50"]
    with (tmp_path / "wrong.json").open("w") as out:
        subprocess.run(command, stdout=out, check=True, timeout=200)
    assert json.loads((tmp_path / "wrong.json").read_text()) == []


def test_a_damaged_checkpoint_is_renamed(tmp_path):
    directory = tmp_path / TINY.id
    directory.mkdir()
    (directory / "checkpoint.safetensors").write_bytes(b"nonsense")
    result, reason = perform(
        TINY, Workspace(Ledger(tmp_path / "ledger.jsonl"), tmp_path), lambda report: None
    )
    assert reason is None
    assert result["id"] == TINY.id
    assert (directory / "checkpoint.safetensors.damaged").read_bytes() == b"nonsense"


def test_selection_uses_validation_only():
    good, bad = replace(TINY, lr=0.1), replace(TINY, lr=0.2)
    entries = [
        entry(replace(good, seed=0), 0.6, 0.9),
        entry(replace(good, seed=1), 0.8, 0.9),
        entry(replace(bad, seed=0), 1.0, 0.5),
        Entry("x", "failed", {}, None, "why", "c", "m"),
    ]
    (choice,) = choose([*entries, entries[0]])  # recorded twice, counted once
    assert (choice.lr, choice.seeds, choice.best) == (0.1, 2, 0.8)
    assert choice.mean == pytest.approx(0.7)
    assert choice.deviation == pytest.approx(0.1414, abs=1e-4)


EXPERIMENT = """
from statemix.models import ModelConfig
from statemix.sweep import grid
from statemix.train import RunConfig

def cells():
    model = ModelConfig("bdlru", {"n_blocks": 2, "block_size": 2}, width=8, channel_mixer="none")
    sizes = {"train_examples": 64, "test_examples": 32, "length": 4, "batch": 32, "epochs": 1}
    yield from grid(RunConfig("s2", model, **sizes), [1e-2], range(3))
"""


def test_experiments_are_files(tmp_path, capsys):
    path = tmp_path / "experiment.py"
    path.write_text(EXPERIMENT)
    configs = load_cells(path)
    assert [config.seed for config in configs] == [0, 1, 2]
    assert [config.seed for config in share(configs, 1, 2)] == [1]
    ledger = tmp_path / "ledger.jsonl"
    common = ["--ledger", str(ledger), "--runs", str(tmp_path / "runs"), "--workers", "1"]
    main(["sweep", str(path), *common, "--dry-run"])
    printed = capsys.readouterr().out
    assert printed.count("to run") == 3
    assert printed.endswith(f"3 of 3 cells are missing in {ledger}\n")
    main(["sweep", str(path), *common, "--job-idx", "0", "--num-jobs", "2"])
    assert len(ledger.read_text().splitlines()) == 2
    main(["sweep", str(path), *common])
    assert "2 were in the ledger" in capsys.readouterr().out.replace("\n", " ")
    assert len({json.loads(line)["id"] for line in ledger.read_text().splitlines()}) == 3


PLACES = """
from statemix.models import ModelConfig
from statemix.sweep import Cell
from statemix.train import RunConfig
from statemix.train.metrics import accuracy_by_length

def cells(scale):
    for seed in range(4 if scale == "paper" else 2):
        options = {"n_blocks": 2, "block_size": 2}
        model = ModelConfig("bdlru", options, width=8, channel_mixer="none")
        sizes = {"train_examples": 64, "test_examples": 32, "length": 4, "batch": 32, "epochs": 1}
        config = RunConfig("s2", model, seed=seed, **sizes)
        yield Cell("BD-LRU m2", "S2", "plain", config)

def measure(config, task, model):
    if config.seed == 1:
        raise RuntimeError("nothing to measure")
    return {"by_length": accuracy_by_length(task, model, (4, 8), 16, 0)}
"""


def test_places_scales_measures_and_limits(tmp_path, capsys):
    path, ledger = tmp_path / "placed.py", tmp_path / "ledger.jsonl"
    path.write_text(PLACES)
    assert [(cell.row, cell.column, cell.config.seed) for cell in load_places(path)] == [
        ("BD-LRU m2", "S2", 0),
        ("BD-LRU m2", "S2", 1),
    ]
    assert len(load_cells(path, "paper")) == 4
    common = ["--ledger", str(ledger), "--runs", str(tmp_path / "runs"), "--workers", "1"]
    main(["sweep", str(path), *common, "--scale", "paper", "--dry-run", "--limit", "3"])
    assert capsys.readouterr().out.count("to run") == 3
    main(["sweep", str(path), *common, "--limit", "1"])
    (first,), _ = Ledger(ledger).read()
    assert set(first.result["measured"]["by_length"]) == {"4", "8"}
    with pytest.raises(SystemExit):
        main(["sweep", str(path), *common])
    second = Ledger(ledger).read()[0][1]
    assert (second.status, second.result) == ("failed", None)
    assert "nothing to measure" in second.reason
    (tmp_path / "plain.py").write_text(EXPERIMENT)
    with pytest.raises(ValueError, match="has one scale only"):
        load_cells(tmp_path / "plain.py", "paper")
    with pytest.raises(ValueError, match="Unknown scale 'moon'"):
        load_cells(path, "moon")


def test_parts_of_a_table(tmp_path, capsys):
    path = tmp_path / "table.py"
    path.write_text(
        PLACES.replace(
            '"BD-LRU m2", "S2", "plain"', 'f"BD-LRU m{seed}", "S2" if seed < 3 else "S3", "plain"'
        )
    )

    def seeds(**where):
        return [config.seed for config in load_cells(path, "paper", Where(**where))]

    assert seeds() == [0, 1, 2, 3]
    assert seeds(rows=("BD-LRU m[1-2]", "BD-LRU m3")) == [1, 2, 3]
    assert seeds(rows=("BD-LRU m[1-3]",), columns=("S2",)) == [1, 2]
    assert seeds(columns=("S*",), recipes=("plain",)) == [0, 1, 2, 3]
    with pytest.raises(
        ValueError,
        match=r"No row of the experiment matches 'LSTM'. Available: BD-LRU m0, .*, BD-LRU m3.",
    ):
        seeds(rows=("BD-LRU m0", "LSTM"))
    with pytest.raises(
        ValueError, match=r"No column of the experiment matches 'S3'. Available: S2."
    ):
        seeds(rows=("BD-LRU m0",), columns=("S3",))
    (tmp_path / "plain.py").write_text(EXPERIMENT)
    with pytest.raises(
        ValueError, match="No row of the experiment matches 'x'. Available: bdlru n_blocks"
    ):
        load_cells(tmp_path / "plain.py", where=Where(rows=("x",)))
    main(
        [
            "sweep",
            str(path),
            "--rows",
            "BD-LRU m1",
            "--dry-run",
            "--ledger",
            str(tmp_path / "ledger.jsonl"),
        ]
    )
    assert capsys.readouterr().out.endswith(
        "1 of 1 cells are missing in " + str(tmp_path / "ledger.jsonl") + "\n"
    )


LONG = EXPERIMENT.replace('"train_examples": 64', '"train_examples": 4096').replace(
    '"epochs": 1', '"epochs": 12, "patience": 0, "solved": 2.0'
)


def test_a_killed_sweep_can_restart_at_once(tmp_path):
    """Its workers exit, and the second sweep runs all cells, including the interrupted one."""
    path, ledger, runs = tmp_path / "long.py", tmp_path / "ledger.jsonl", tmp_path / "runs"
    path.write_text(LONG)
    command = [sys.executable, "-m", "statemix", "sweep", str(path), "--workers", "2"]
    command += ["--ledger", str(ledger), "--runs", str(runs)]
    first = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while not any(runs.glob("*/metrics.jsonl")):
        time.sleep(0.02)
    first.kill()
    second = subprocess.run(command, capture_output=True, text=True, check=True)
    first.wait()
    assert "3 runs done, 0 failed, 0 were in the ledger" in " ".join(second.stdout.split())
    assert sorted(entry.status for entry in Ledger(ledger).read()[0]) == ["done"] * 3


def test_two_sweeps_share_the_cells(tmp_path):
    path, ledger = tmp_path / "long.py", tmp_path / "ledger.jsonl"
    path.write_text(LONG)
    command = [sys.executable, "-m", "statemix", "sweep", str(path), "--workers", "2"]
    command += ["--ledger", str(ledger), "--runs", str(tmp_path / "runs")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = " ".join(" ".join(one.communicate()[0] for one in both).split())
    assert [one.returncode for one in both] == [0, 0]
    assert "0 failed, 0 were in the ledger" in printed
    assert sorted(entry.status for entry in Ledger(ledger).read()[0]) == ["done"] * 3


def test_measurements_must_be_json(tmp_path, capfd):
    """A measurement that cannot be recorded does not affect other runs."""
    path, ledger = tmp_path / "measured.py", tmp_path / "ledger.jsonl"
    changed = PLACES.replace(
        'raise RuntimeError("nothing to measure")', 'import numpy; return {"x": numpy.float32(1.5)}'
    )
    path.write_text(changed.replace("range(4 if", "range(1, 4 if"))
    with pytest.raises(SystemExit):
        main(
            [
                "sweep",
                str(path),
                "--scale",
                "paper",
                "--ledger",
                str(ledger),
                "--runs",
                str(tmp_path / "runs"),
                "--workers",
                "1",
            ]
        )
    entries, _ = Ledger(ledger).read()
    assert sorted(entry.status for entry in entries) == ["done", "done", "failed"]
    (reason,) = (entry.reason for entry in entries if entry.status == "failed")
    assert "`measure` must return numbers, strings, lists and dictionaries of them" in reason


def test_options_may_be_numpy_numbers():
    model = ModelConfig("bdlru", {"n_blocks": 2, "block_size": np.int64(3)})
    assert (
        replace(TINY, model=model).id
        == replace(TINY, model=replace(model, options={"n_blocks": 2, "block_size": 3})).id
    )


def test_a_changed_mixer_is_detected(tmp_path, capfd):
    """A sweep warns if the ledger has runs of the old mixer, and fails if only directories do."""
    path, ledger = tmp_path / "own.py", tmp_path / "ledger.jsonl"
    path.write_text(OWN)
    command = [
        sys.executable,
        "-m",
        "statemix",
        "sweep",
        str(path),
        "--ledger",
        str(ledger),
        "--runs",
        str(tmp_path / "runs"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    (entry,) = Ledger(ledger).read()[0]
    assert list(entry.files) == ["own.py"]
    assert (
        "changed since"
        not in subprocess.run(command, check=True, capture_output=True, text=True).stderr
    )
    path.write_text(OWN + "# another\n")
    printed = " ".join(
        subprocess.run(command, check=True, capture_output=True, text=True).stderr.split()
    )
    assert "own.py changed since runs in" in printed
    ledger.unlink()
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    (entry,) = Ledger(ledger).read()[0]
    assert "own.py changed since the run" in entry.reason


OWN = """
from torch import nn
from statemix import register_mixer
from statemix.models import ModelConfig
from statemix.train import RunConfig

@register_mixer("test_own")
class Own(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.state_size = d_model
        self.scale = nn.Parameter(__import__("torch").ones(d_model))

    def forward(self, x, state=None, *, cu_seqlens=None, mask=None):
        y = (x * self.scale).cumsum(1)
        return y, y[:, -1]

    def step(self, x_t, state=None):
        y_t = x_t * self.scale + (0 if state is None else state)
        return y_t, y_t

def cells():
    sizes = {"train_examples": 64, "test_examples": 32, "length": 4, "batch": 32, "epochs": 1}
    yield RunConfig("s2", ModelConfig("test_own", width=8), **sizes)
"""


def test_workers_know_mixers_of_the_experiment(tmp_path, capsys):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    main(
        [
            "sweep",
            str(path),
            "--ledger",
            str(tmp_path / "ledger.jsonl"),
            "--runs",
            str(tmp_path / "runs"),
            "--workers",
            "1",
        ]
    )
    assert "1 runs done" in capsys.readouterr().out
    small = [
        "--examples",
        "64",
        "--width",
        "8",
        "--length",
        "4",
        "--epochs",
        "1",
        "--runs",
        str(tmp_path / "other"),
    ]
    main(["train", "s2", "--mixer", "test_own", "--files", str(path), *small])
    assert "test_own" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "must define `cells"),
        ("def cells():\n    yield 3", "must yield RunConfig, got int"),
        ("def cells():\n    pass", "it returned None"),
    ],
)
def test_invalid_experiments_raise(tmp_path, text, message):
    path = tmp_path / "experiment.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_cells(path)


def test_an_unwritable_ledger_stops_the_sweep_before_any_run(tmp_path):
    with pytest.raises(ValueError, match="must be a regular file, but it is a directory"):
        sweep([TINY], Ledger(tmp_path), tmp_path / "runs", engine="local", workers=1)
    assert not (tmp_path / "runs").exists()


def test_ray(tmp_path):
    pytest.importorskip("ray", reason="ray is only in the extra `ray`")
    ledger = Ledger(tmp_path / "ledger.jsonl")
    summary = sweep([TINY, BROKEN], ledger, tmp_path / "runs", engine="ray", workers=1)
    assert (summary.done, summary.failed) == (1, 1)
