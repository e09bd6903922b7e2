"""Training: configs and ids, protocols, the loop, and resuming to the same bits."""

import copy
import json
import math
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from statemix.cli import main
from statemix.commands.train import Train, read_options
from statemix.commands.views.eval import fitting_lengths
from statemix.commands.views.train import print_result, run_training
from statemix.files.writing import write_atomically
from statemix.layers.lookup import embed
from statemix.models import Autoencoder, ModelConfig, Tagger, build_model
from statemix.ops import Lookup
from statemix.optim import is_inner_matrix
from statemix.runs.checkpoint import DamagedCheckpoint, load_checkpoint, save_checkpoint
from statemix.runs.lock import entered
from statemix.runs.plugins import load_file
from statemix.runs.trackers import open_tracker
from statemix.tasks import IGNORE, TASKS, Examples, find_task
from statemix.train import (
    RunConfig,
    aids,
    config_from_dict,
    finish,
    loop,
    mad_preset,
    paper_protocol,
    sequences,
    sharpened_preset,
    tracking_preset,
    train,
)
from statemix.train import metrics as train_metrics
from statemix.train.metrics import accuracy_by_length, all_end_right, score
from statemix.train.state import Counters, start_run
from statemix.train.trained import load_trained

CLOCKS = ("seconds", "cpu_seconds")

SMALL = RunConfig(
    "s3",
    ModelConfig("bdlru", {"n_blocks": 4, "block_size": 3}, width=16, channel_mixer="none"),
    train_examples=256,
    test_examples=64,
    length=6,
    batch=64,
    epochs=4,
    patience=0,
    lr=1e-3,
    clip=0.0,
)


def metrics(directory):
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in CLOCKS} for line in lines]


def comparable(result):
    return replace(result, seconds=0.0, cpu_seconds=0.0)


def interrupt_at(epoch):
    def interrupt(run, report):
        if report.epoch == epoch:
            raise KeyboardInterrupt

    return interrupt


def test_ids_follow_the_config():
    assert SMALL.id == replace(SMALL).id
    assert (
        len(
            {
                SMALL.id,
                replace(SMALL, seed=1).id,
                replace(SMALL, model=replace(SMALL.model, bos=False)).id,
            }
        )
        == 3
    )
    again = config_from_dict(json.loads(SMALL.to_json()))
    assert again == SMALL
    assert again.id == SMALL.id


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: config_from_dict({"task": "s3", "version": 99}), "written by a newer statemix"),
        (
            lambda: config_from_dict({"task": "s3", "rate": 1}),
            "Unknown fields in the config of a run: rate",
        ),
        (
            lambda: replace(SMALL, protocol="fast"),
            "Unknown protocol 'fast'. Available: honest, paper",
        ),
        (
            lambda: replace(SMALL, optimiser="sgd"),
            "Unknown optimiser 'sgd'. Available: adamw, muon",
        ),
        (lambda: replace(SMALL, optimiser="muon", matrix_lr=0.0), "`matrix_lr` must be above zero"),
        (lambda: replace(SMALL, length=2.5), "`length` must be a whole number, got 2.5"),
        (lambda: replace(SMALL, epochs="5"), "`epochs` must be a whole number, got '5'"),
        (
            lambda: find_task("s3", {"foo": 1}),
            "Unknown option of task 's3': 'foo'. Available: none",
        ),
        (lambda: replace(SMALL, batch=0), "`batch` must be at least 1, got 0"),
        (lambda: replace(SMALL, lr=0.0), "`lr` must be above zero"),
        (lambda: replace(SMALL, curriculum=(4, 2)), "`curriculum` must list increasing lengths"),
        (lambda: replace(SMALL, curriculum=(0, 2)), "`curriculum` must list increasing lengths"),
        (lambda: replace(SMALL, warmup=-5), "`warmup` must be finite and not negative, got -5"),
        (lambda: replace(SMALL, seed=-1), "`seed` must be finite and not negative"),
        (lambda: replace(SMALL, clip=math.nan), "`clip` must be a number, got nan"),
        (lambda: replace(SMALL, weight_decay=math.nan), "`weight_decay` must be a number, got nan"),
        (lambda: replace(SMALL, solved=math.nan), "`solved` must be a number, got nan"),
        (lambda: replace(SMALL, lr="0.1"), "`lr` must be a number, got '0.1'"),
        (lambda: replace(SMALL, lr=math.inf), "`lr` must be above zero and finite, got inf"),
        (lambda: replace(SMALL, length=0), "`length` must be at least 1, got 0"),
        (lambda: config_from_dict([1]), "The config of a run must be a JSON object"),
        (
            lambda: config_from_dict({"task": "s3", "model": {"depth": 2}}),
            "Unknown fields in the config of a run's model: depth",
        ),
        (
            lambda: find_task("copy", {"tokens": "abc"}),
            "`tokens` of task 'copy' must be of type int, got 'abc'",
        ),
        (lambda: ModelConfig(width=0), "`width` must be at least 1"),
        (
            lambda: open_tracker("mlflow", SMALL, None),
            "Unknown tracker 'mlflow'. Available: none, wandb",
        ),
    ],
)
def test_invalid_configs_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_same_seed_gives_the_same_bits(tmp_path):
    a, b = (train(SMALL, tmp_path / name) for name in "ab")
    assert comparable(a) == comparable(b)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert (
        metrics(tmp_path / "a")
        != (train(replace(SMALL, seed=1), tmp_path / "c"), metrics(tmp_path / "c"))[1]
    )


CURRICULUM = replace(SMALL, curriculum=(2, 4), restart_after=5, epochs=20)


@pytest.mark.parametrize(
    "config",
    [SMALL, CURRICULUM, replace(CURRICULUM, optimiser="muon")],
    ids=["plain", "curriculum", "muon"],
)
@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_run_resumes_to_the_same_bits(tmp_path, monkeypatch, config, stop):
    full = train(config, tmp_path / "full")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=interrupt_at(stop))
    assert comparable(train(config, tmp_path / "cut")) == comparable(full)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "full")
    ours, theirs = (
        load_checkpoint(tmp_path / name / "checkpoint.safetensors")[0] for name in ("cut", "full")
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def numbered_moments(path, config):
    """Rewrite a checkpoint as in older versions: moments by number, with Muon's matrices first."""
    tensors, state = load_checkpoint(path)
    named = list(start_run(config).model.named_parameters())
    is_first = {name: config.optimiser == "muon" and is_inner_matrix(name, p) for name, p in named}
    order = sorted(is_first, key=lambda name: not is_first[name])
    for key in [key for key in tensors if key.startswith("optimiser.")]:
        _, kind, name = key.split(".", 2)
        tensors[f"optimiser.{order.index(name)}.{kind}"] = tensors.pop(key)
    save_checkpoint(path, tensors, state)


@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_checkpoints_of_older_versions_resume_to_the_same_bits(tmp_path, monkeypatch, optimiser):
    config = replace(SMALL, optimiser=optimiser, model=replace(SMALL.model, channel_mixer="swiglu"))
    full = train(config, tmp_path / "full")
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=interrupt_at(1))
    numbered_moments(tmp_path / "cut" / "checkpoint.safetensors", config)
    assert comparable(train(config, tmp_path / "cut")) == comparable(full)
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "full")


def test_muon_updates_the_matrices_of_blocks_and_decoder():
    model = ModelConfig(width=8, options={"n_blocks": 2, "block_size": 2})
    config = RunConfig("compress", model, length=4, optimiser="muon", matrix_lr=0.03)
    run = start_run(config)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    loop.train_step(run)
    for name, p in run.model.named_parameters():
        largest = (p.detach() - before[name]).abs().max().item()
        if p.ndim == 2 and name.startswith(("blocks.", "decoder.")):
            change = torch.linalg.matrix_norm(p.detach() - before[name], 2).item()
            assert (
                0.5 < change / (config.matrix_lr * max(1, p.shape[0] / p.shape[1]) ** 0.5) < 1.3
            ), name
        else:
            assert largest <= 1.01 * config.lr, name
    adamw = replace(config, optimiser="adamw")
    assert len({config.id, adamw.id, replace(config, matrix_lr=0.02).id}) == 3
    assert RunConfig("s3").id == "5e25aa6a9953ae91"  # the id from before there was a choice


def test_killed_runs_resume_to_the_same_bits(tmp_path):
    """Kill a run with SIGKILL at random moments; it resumes to the bits of an uninterrupted run."""
    config = replace(SMALL, epochs=60)
    train(config, tmp_path / "truth")
    code = (
        "import json, sys, torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from statemix.train import config_from_dict, loop, train\n"
        "loop.CHECKPOINT_SECONDS = 0.0\n"
        "train(config_from_dict(json.loads(sys.argv[1])), Path(sys.argv[2]))\n"
    )
    directory, kills, rng = tmp_path / "killed", 0, np.random.default_rng(0)
    while not (directory / "result.json").exists():
        process = subprocess.Popen([sys.executable, "-c", code, config.to_json(), str(directory)])
        started = time.monotonic()
        while (
            process.poll() is None
            and not (directory / "metrics.jsonl").exists()
            and time.monotonic() - started < 60
        ):
            time.sleep(0.01)
        if kills < 3:
            time.sleep(rng.uniform(0.05, 0.4))
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.wait()
    results = [
        json.loads((place / "result.json").read_text()) for place in (directory, tmp_path / "truth")
    ]
    killed, truth = (
        {name: value for name, value in result.items() if name not in CLOCKS} for result in results
    )
    assert killed == truth
    assert killed["id"] == config.id
    assert metrics(directory) == metrics(tmp_path / "truth")


def test_a_finished_run_is_not_trained_again(tmp_path):
    first = train(SMALL, tmp_path)
    assert train(SMALL, tmp_path, observer=lambda *_: pytest.fail("trained again")) == first


def test_a_checkpoint_of_another_config_raises(tmp_path):
    train(SMALL, tmp_path)
    (tmp_path / "result.json").unlink()
    with pytest.raises(ValueError, match="belongs to another config"):
        train(replace(SMALL, lr=0.5), tmp_path)


def test_a_checkpoint_without_a_new_field_resumes(tmp_path):
    """The config of an older checkpoint lacks new fields, which have their defaults."""
    full = train(SMALL, tmp_path)
    (tmp_path / "result.json").unlink()
    tensors, state = load_checkpoint(tmp_path / "checkpoint.safetensors")
    config = json.loads(state["config"])
    del config["optimiser"], config["matrix_lr"]
    save_checkpoint(
        tmp_path / "checkpoint.safetensors", tensors, {**state, "config": json.dumps(config)}
    )
    assert comparable(train(SMALL, tmp_path)) == comparable(full)


def test_a_result_of_another_config_raises(tmp_path):
    train(SMALL, tmp_path)
    with pytest.raises(ValueError, match="holds the result of another run"):
        train(replace(SMALL, seed=3), tmp_path)


def test_a_damaged_result_is_renamed(tmp_path):
    first = train(SMALL, tmp_path)
    (tmp_path / "result.json").write_text("{bad")
    assert comparable(train(SMALL, tmp_path)) == comparable(first)
    assert (tmp_path / "result.json.damaged").read_text() == "{bad"


def test_a_curriculum_without_targets_raises(tmp_path):
    with pytest.raises(ValueError, match="The task 'copy' scores none of the first 4 positions"):
        train(replace(SMALL, task="copy", length=40, curriculum=(4,)), tmp_path)


def test_a_damaged_checkpoint_raises(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, {"x": torch.ones(3)}, {"step": 1})
    assert load_checkpoint(path)[1] == {"step": 1}
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(DamagedCheckpoint, match="cannot be read"):
        load_checkpoint(path)


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(
        "os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_honest_protocol_reports_the_best_validation_epoch(tmp_path):
    result = train(replace(SMALL, lr=1e-2, epochs=6), tmp_path)
    best = max(range(6), key=lambda epoch: (metrics(tmp_path)[epoch]["validation"], epoch))
    assert result.best_epoch == best
    assert result.validation["token"] == metrics(tmp_path)[best]["validation"]
    assert all(line["test"] is None for line in metrics(tmp_path))


def test_the_paper_protocol_selects_on_the_test_set(tmp_path):
    config = paper_protocol(replace(SMALL, epochs=3))
    assert not config.model.bos
    result = train(config, tmp_path)
    assert result.epochs == 3
    assert all(line["test"] is not None for line in metrics(tmp_path))


def test_a_solved_run_ends(tmp_path):
    config = replace(
        SMALL, task="parity", length=3, train_examples=512, lr=2e-2, epochs=200, solved=0.99
    )
    result = train(config, tmp_path)
    assert result.epochs < 200
    assert result.validation["token"] >= 0.99
    # There are only eight words of three bits, so the splits overlap, which is reported.
    assert result.shared_inputs > 0


def test_a_curriculum_grows(tmp_path):
    config = replace(
        SMALL,
        task="s2",
        curriculum=(2, 4),
        lr=2e-2,
        epochs=120,
        length=6,
        train_examples=1024,
        solved=2.0,
        patience=0,
    )
    train(config, tmp_path)
    lengths = [line["length"] for line in metrics(tmp_path)]
    assert lengths[0] == 2
    assert lengths[-1] == 6
    assert lengths == sorted(lengths)


def test_restarts_use_new_weights(tmp_path):
    result = train(replace(SMALL, restart_after=50, epochs=40, lr=1e-5), tmp_path)
    assert result.restarts >= 2


def test_a_loss_that_explodes_stops_the_run(tmp_path):
    model = replace(SMALL.model, options={"n_blocks": 4, "block_size": 3, "gate": "none"})
    with pytest.raises(FloatingPointError, match=r"is (nan|inf) at step"):
        train(replace(SMALL, model=model, lr=1e9, length=40), tmp_path)


def test_learning_rate_is_a_cosine_with_warm_up():
    config = replace(SMALL, lr=1.0, min_lr=0.1, warmup=4, max_steps=14)
    rates = [loop.learning_rate(config, Counters(step)) for step in range(15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[9] == pytest.approx(0.55)
    assert rates[14] == pytest.approx(0.1)


def test_learning_rate_can_stay_and_cool_down():
    config = replace(SMALL, lr=1.0, min_lr=0.1, warmup=4, max_steps=14, cooldown=0.5)
    rates = [loop.learning_rate(config, Counters(step)) for step in range(15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:8] == [1.0] * 4
    assert rates[8] == pytest.approx(1 - 0.9 / 7)
    assert rates[14] == pytest.approx(0.1)


def test_scores():
    accuracy = score(np.array([[0, 1, 1], [1, 1, 0]]), np.array([[0, 1, -100], [0, 1, -100]]), 2)
    assert accuracy.token == 0.75
    assert accuracy.macro == 0.75
    assert accuracy.sequence == 0.5
    assert accuracy.by_position[:2] == [0.5, 1.0]
    assert np.isnan(accuracy.by_position[2])


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("bdlru", {"n_blocks": 3, "block_size": 2}),
        ("lstm", {"hidden": 5}),
        ("deltanet", {"head_dim": 4}),
    ],
)
def test_the_tagger_steps_and_continues(mixer, options, bos):
    model = Tagger(
        ModelConfig(mixer, options, width=8, layers=2, bos=bos), vocab=5, classes=4
    ).double()
    tokens = torch.randint(5, (2, 9))
    logits, states = model(tokens)
    assert logits.shape == (2, 9, 4)
    first, between = model(tokens[:, :4])
    second, _ = model(tokens[:, 4:], between)
    torch.testing.assert_close(torch.cat([first, second], 1), logits)
    stepped, state = [], None
    for t in range(9):
        y, state = model.step(tokens[:, t], state)
        stepped.append(y)
    torch.testing.assert_close(torch.stack(stepped, 1), logits)
    assert len(states) == 2


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("mixer", "options"),
    [("bdlru", {"n_blocks": 3, "block_size": 2}), ("hlru", {"n_channels": 3, "order": 2})],
)
def test_looked_up_gates_match_projected_gates(monkeypatch, mixer, options, layers):
    config = ModelConfig(mixer, {**options, "learn_initial_state": True}, width=8, layers=layers)
    model, tokens = Tagger(config, vocab=5, classes=4).double(), torch.randint(5, (4, 9))

    def everything():
        logits, states = model(tokens)
        again, _ = model(tokens, states)
        return [
            logits,
            again,
            *states,
            *torch.autograd.grad((logits**2).sum() + again.sum(), list(model.parameters())),
        ]

    assert isinstance(embed(model.embedding, tokens, model.blocks[0].mixer), Lookup)
    looked_up = everything()
    monkeypatch.setattr("statemix.ops.dispatch.layer.FEW", 10**9)
    assert not isinstance(embed(model.embedding, tokens, model.blocks[0].mixer), Lookup)
    torch.testing.assert_close(looked_up, everything(), rtol=1e-10, atol=1e-12)


def test_the_autoencoder_has_a_fixed_number_of_positions():
    task = find_task("compress", {"vocab": 6})
    model = build_model(ModelConfig(options={"n_blocks": 4, "block_size": 2}, width=8), task, 10)
    assert isinstance(model, Autoencoder)
    tokens = torch.from_numpy(task.examples(3, 10, np.random.default_rng(0)).inputs)
    logits, _ = model(tokens)
    assert logits.shape == (3, 10, 6)
    with pytest.raises(ValueError, match="has 10 positions, got a sequence of 11"):
        model(torch.zeros(1, 11, dtype=torch.long))


TINY = ["--examples", "128", "--width", "8", "--length", "5", "--epochs", "2"]
SMALL_RUN = [*TINY, "--blocks", "2", "--block-size", "3"]


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


DECAYING = replace(
    SMALL,
    task="s2",
    lr=2e-2,
    warmup=10,
    curriculum=(2, 4),
    decay=50,
    sharpen=1.01,
    epochs=400,
    min_lr=1e-4,
)
HELD = replace(DECAYING, hold=40)


def test_the_decay_starts_once_sequences_are_learned_and_ends_the_run(tmp_path):
    """Once sequences are learned, the rate falls linearly to `min_lr` while gates are sharpened."""
    config = DECAYING
    result = train(config, tmp_path)
    lines = metrics(tmp_path)
    assert result.steps < 400 * 4
    assert result.test["token"] == 1.0
    assert lines[-1]["lr"] == pytest.approx(config.min_lr)
    assert max(line["lr"] for line in lines) == config.lr
    decaying = [line for line in lines if line["lr"] < config.lr and line["step"] > config.warmup]
    assert 50 // 4 - 1 <= len(decaying) <= 50 // 4 + 2
    blunt = train(replace(config, sharpen=1.0), tmp_path / "blunt")
    assert blunt.steps == result.steps  # the runs are the same until the decay
    norms = [
        load_trained(place)[2].blocks[0].mixer.W_g.weight.norm().item()
        for place in (tmp_path, tmp_path / "blunt")
    ]
    assert norms[0] > 1.3 * norms[1]


def test_gates_become_hard_in_the_decay_and_stay_so(tmp_path, monkeypatch):
    """The selected weights are evaluated, saved and loaded as those of a model that copies."""
    config = replace(HELD, sharpen=1.0, harden=True)
    result = train(config, tmp_path / "unbroken")
    assert result.held
    assert result.test["token"] == 1.0
    _, task, model = load_trained(tmp_path / "unbroken")
    assert model.blocks[0].mixer.gate == "hardmax"
    by_length = accuracy_by_length(task, model, [6, 400], 32, 0)
    assert by_length == {"6": 1.0, "400": 1.0}
    stop = len(metrics(tmp_path / "unbroken")) - 5  # within the decay
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=interrupt_at(stop))
    resumed = train(config, tmp_path / "cut")
    assert comparable(resumed) == comparable(result)
    soft = train(replace(config, max_steps=8), tmp_path / "soft")
    assert not soft.held
    assert load_trained(tmp_path / "soft")[2].blocks[0].mixer.gate == "softmax"


def test_hard_gates_need_a_decay(unchecked):
    with pytest.raises(ValueError, match="`harden` = True takes effect in the decay"):
        replace(SMALL, harden=True)


def test_mistakes_after_the_decay_restart_the_run():
    config = replace(SMALL, decay=50)
    learned = Counters(attempt_step=100, stage_step=100, decay_step=50)
    assert aids.judge(config, learned, 1.0).ended
    again = aids.judge(config, learned, 0.999)
    assert (again.attempt, again.attempt_step, again.decay_step, again.ended) == (1, 0, -1, False)
    assert (
        aids.judge(config, replace(learned, decay_step=25), 0.5).attempt == 0
    )  # the decay has not ended


def test_a_failed_held_out_check_restarts_the_run(tmp_path, monkeypatch):
    """Weights that fail the check are not chosen, even with the best validation accuracy."""
    answers, judged, real = iter([False, True]), [], loop.end_epoch
    monkeypatch.setattr(
        aids,
        "holds",
        lambda run: judged.append(copy.deepcopy(run.model.state_dict())) or next(answers),
    )

    def end_with_a_higher_accuracy(run, *args):
        if run.counters.attempt == 0:
            report = real(run, *args)
            run.counters = replace(run.counters, best_accuracy=2.0)
            return report
        return real(run, *args)

    monkeypatch.setattr(loop, "end_epoch", end_with_a_higher_accuracy)
    result = train(HELD, tmp_path)
    assert (result.restarts, result.held) == (1, True)
    chosen = load_trained(tmp_path)[2].state_dict()
    assert all(torch.equal(chosen[name], x) for name, x in judged[1].items())
    assert not all(torch.equal(chosen[name], x) for name, x in judged[0].items())


def test_the_held_out_check_uses_longer_unseen_sequences(monkeypatch):
    monkeypatch.setattr(sequences, "HELD_TOKENS", 10_000)
    run = start_run(replace(HELD, length=8))
    assert len(run.data["hold"]) == 250
    right = {
        inputs.tobytes(): targets
        for inputs, targets in zip(run.data["hold"].inputs, run.data["hold"].targets, strict=True)
    }
    assert run.data["hold"].inputs.shape[1] == 40
    assert run.data["train"].inputs.shape[1] == 8

    class Solver(nn.Module):
        def __init__(self, mistakes):
            super().__init__()
            self.mistakes = mistakes

        def forward(self, tokens):
            answers = torch.stack(
                [torch.from_numpy(right[row.numpy().tobytes()]) for row in tokens]
            )
            for row, position in self.mistakes:
                answers[row, position] += 1
            return F.one_hot(answers % run.task.classes, run.task.classes).float(), []

    # Mistakes before the last position are allowed.
    for mistakes, holds in (((), True), (((0, 20), (3, 38)), True), (((3, 39),), False)):
        run.model = Solver(mistakes)
        assert aids.holds(run) == holds
        assert run.model.training
    # The last chunk is smaller than the others; a mistake in it counts.
    monkeypatch.setattr(train_metrics, "_ROWS", 100)
    run.model = Solver(((len(run.data["hold"]) % 100 - 1, 39),))
    assert not aids.holds(run)
    run.config = replace(run.config, hold=0)
    assert aids.holds(run)


def test_the_last_answer_may_precede_the_end():
    """Shorter sequences are padded with empty tokens, which are not scored."""
    targets = np.array([[IGNORE, 1, IGNORE], [0, IGNORE, 1]])

    class FixedAnswers(nn.Module):
        def __init__(self, answers):
            super().__init__()
            self.answers = answers

        def forward(self, tokens):
            return F.one_hot(torch.tensor(self.answers), 2).float(), []

    examples = Examples(np.zeros_like(targets), targets)
    assert all_end_right(FixedAnswers([[0, 1, 0], [1, 0, 1]]), examples)
    assert not all_end_right(FixedAnswers([[1, 0, 1], [0, 0, 1]]), examples)
    assert not all_end_right(FixedAnswers([[0, 1, 0], [0, 0, 0]]), examples)


def test_a_run_without_a_passed_check_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aids, "holds", lambda run: False)
    result = train(replace(HELD, max_steps=300), tmp_path)
    assert result.held is False
    assert train(replace(HELD, hold=0), tmp_path / "not asked").held is None
    print_result(HELD, result, tmp_path)
    assert "No attempt passed the held-out check at 40 tokens" in " ".join(
        capsys.readouterr().out.split()
    )
    print_result(HELD, replace(result, held=True), tmp_path)
    assert "held-out check passed: every final answer at 40 tokens is right" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("task", "length", "hold", "message"),
    [
        ("mod_arith", 9, 40, "`hold` = 40 does not fit the task 'mod_arith'"),
        (
            "compress",
            16,
            64,
            "`hold` = 64 exceeds the 16 positions of this model. Set it to 0.",
        ),
    ],
)
def test_invalid_lengths_of_the_held_out_check_raise(tmp_path, task, length, hold, message):
    with pytest.raises(ValueError, match=message):
        run_training(
            replace(HELD, task=task, length=length, hold=hold),
            tmp_path / "runs",
            threads=1,
            resume=True,
            tracker="none",
        )
    assert not (tmp_path / "runs").exists()


def test_prefixes_longer_than_sequences_raise(tmp_path):
    with pytest.raises(
        ValueError, match="`curriculum` has prefixes of up to 9 tokens, but the sequences have 6"
    ):
        train(replace(SMALL, curriculum=(2, 4, 9)), tmp_path / "run")
    assert train(replace(SMALL, curriculum=(2, 6), epochs=1), tmp_path / "full").steps > 0


def test_the_preset_checks_valid_lengths():
    assert sharpened_preset(RunConfig("s5")).hold == 256
    odd = sharpened_preset(RunConfig("mod_arith", length=9)).hold
    assert find_task("mod_arith").fits(odd)
    with pytest.raises(ValueError, match="`hold` = 64 takes effect in the decay"):
        RunConfig("s5", hold=64)


def test_restarts_count_the_steps_of_a_stage():
    config = replace(SMALL, curriculum=(2, 4), restart_after=100, warmup=50)

    def stuck(stage, steps):
        return aids.judge(config, Counters(stage=stage, stage_step=steps), 0.5).attempt

    assert (stuck(0, 125), stuck(0, 150)) == (0, 1)  # the warm-up is added to the first stage
    assert (stuck(1, 75), stuck(1, 100)) == (0, 1)
    decaying = Counters(stage=2, stage_step=500, decay_step=0)
    assert aids.judge(config, decaying, 0.5).attempt == 0  # no restart after the decay has started
    assert aids.judge(config, Counters(stage=1, stage_step=100), 0.95).stage == 2


def test_a_stage_ends_after_its_maximum_steps():
    config = replace(SMALL, curriculum=(2, 4), stage_steps=75)
    assert aids.judge(config, Counters(stage=0, stage_step=50), 0.1).stage == 0
    assert aids.judge(config, Counters(stage=0, stage_step=75), 0.1).stage == 1


@pytest.mark.parametrize(
    ("length", "stages"),
    [(None, (2, 3, 4, 6, 9, 13)), (6, (2, 3, 4)), (40, (2, 3, 4, 6, 9, 13, 20, 30))],
)
def test_the_sharpened_preset(length, stages):
    config = sharpened_preset(replace(SMALL, length=length))
    assert config.curriculum == stages
    assert config.length == (length or 16)
    assert config.model.bos
    assert config.model.channel_mixer == "none"
    plain = paper_protocol(config)
    assert (plain.curriculum, plain.decay, plain.sharpen, plain.restart_after, plain.model.bos) == (
        (),
        0,
        1.0,
        0,
        False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a seed may need a dozen attempts
@pytest.mark.parametrize("seed", [1, 2])
def test_the_preset_solves_s5_and_generalises(tmp_path, seed):
    """A model trained at 16 tokens has an accuracy of at least .999 at 1,024."""
    model = ModelConfig(options={"n_blocks": 32, "block_size": 5}, width=64)
    config = sharpened_preset(RunConfig("s5", model, train_examples=100_000, epochs=50, seed=seed))
    assert train(config, tmp_path).test["token"] >= 0.9999
    _, task, trained = load_trained(tmp_path)
    assert accuracy_by_length(task, trained, (1024,), 64, 0)["1024"] >= 0.999


def test_the_tracking_preset_proves_what_can_be_proved():
    proved = tracking_preset(RunConfig("s5"))
    assert (proved.harden, proved.certify, proved.sharpen) == (True, True, 1.0)
    lstm = RunConfig("s5", ModelConfig("lstm"))
    assert tracking_preset(lstm) == sharpened_preset(lstm)


def test_only_gates_that_saturate_can_be_sharpened():
    layer = build_model(
        replace(SMALL.model, options={"n_blocks": 2, "block_size": 2, "gate": "linear"}),
        find_task("s3"),
        6,
    )
    with pytest.raises(
        ValueError,
        match=r"Only gates that saturate can be sharpened "
        r"\(softmax, hardmax, sigmoid, tanh\), got 'linear'",
    ):
        aids.sharpen(layer, 1.1)


def test_new_fields_do_not_change_ids():
    """Runs in a ledger keep their ids if configs get new fields."""
    assert replace(SMALL, seed=3).id != SMALL.id
    assert replace(SMALL, model=replace(SMALL.model, width=17)).id != SMALL.id
    assert RunConfig("s3").id == "5e25aa6a9953ae91"


def test_the_mad_preset():
    """It starts the gates and the positions of the task at hand, and caps the number of steps."""
    config = mad_preset(RunConfig("compress", replace(SMALL.model, width=64)))
    assert config.model.options == {**SMALL.model.options, "init": "hold"}
    assert (config.model.width, config.model.positions, config.model.bos) == (128, "smooth", False)
    assert (config.total_steps, config.optimiser, config.cooldown) == (4000, "muon", 0.3)
    assert mad_preset(RunConfig("copy", ModelConfig("lstm"))).model.options == {}
    assert "init" not in mad_preset(RunConfig("s3", SMALL.model)).model.options
    given = Train("compress", block_size=3, blocks=4, preset="mad", batch=64, width=32).run_config()
    model = ModelConfig(options={"n_blocks": 4, "block_size": 3})
    preset = mad_preset(RunConfig("compress", model, batch=64))
    assert given == replace(preset, model=replace(preset.model, width=32))
    other = Train("compress", preset="mad", options=("init=paper",)).run_config()
    assert other.model.options["init"] == "paper"


def test_a_result_has_a_learning_curve(monkeypatch, tmp_path):
    monkeypatch.setattr(finish, "CURVE_POINTS", 3)
    result = train(replace(SMALL, epochs=5), tmp_path)
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = [[r["step"], pytest.approx(r["validation"], abs=1e-4)] for r in reports[::2]]
    assert result.curve == expected


def test_explicit_options_override_a_preset():
    given = {
        "lr": 5e-3,
        "sharpen": 1.0,
        "channel_mixer": "swiglu",
        "curriculum": (2, 4),
        "clip": 0.3,
        "warmup": 7,
        "decay": 50,
    }
    config = Train("s5", block_size=5, preset="tracking", bos=False, **given).run_config()
    assert (
        config.lr,
        config.sharpen,
        config.curriculum,
        config.clip,
        config.warmup,
        config.decay,
    ) == (5e-3, 1.0, (2, 4), 0.3, 7, 50)
    assert (config.model.channel_mixer, config.model.bos, config.restart_after) == (
        "swiglu",
        False,
        200,
    )
    preset = tracking_preset(
        RunConfig(
            "s5",
            ModelConfig("bdlru", {"n_blocks": 32, "block_size": 5}, width=64),
            clip=1.0,
            epochs=50,
        )
    )
    assert Train("s5", block_size=5, preset="tracking").run_config() == preset
    assert Train("s5", block_size=5, preset="tracking", sharpen=1.01).run_config() == replace(
        preset, sharpen=1.01
    )
    assert Train("s5", block_size=5, preset="tracking", weight_decay=0.1).run_config() == replace(
        preset, weight_decay=0.1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mixer": "lstm", "blocks": 3},
            "--blocks are sizes of bdlru, hlru; give those of 'lstm' with --options",
        ),
        ({"matrix_lr": 0.1}, "--matrix-lr is a learning rate of --optimiser muon"),
        (
            {"protocol": "paper", "clip": 1.0, "optimiser": "muon"},
            "--protocol paper trains without --clip, --optimiser",
        ),
        ({"protocol": "paper", "preset": "tracking"}, "--protocol paper trains without --preset"),
        (
            {"protocol": "paper", "weight_decay": 0.1},
            "--protocol paper trains without --weight-decay",
        ),
    ],
)
def test_options_without_effect_raise(options, message):
    with pytest.raises(SystemExit, match=message):
        Train("s3", **options).run_config()


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


def test_retraining_deletes_the_old_result_first(tmp_path):
    """An interrupted retraining resumes and does not report the old result."""
    train(SMALL, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        train(SMALL, tmp_path, resume=False, observer=interrupt_at(0))
    epochs = []
    train(SMALL, tmp_path, observer=lambda run, report: epochs.append(report.epoch))
    assert epochs == [0, 1, 2, 3]


def test_two_processes_cannot_train_the_same_run(tmp_path):
    config = Train(
        "s3", train_examples=128, width=8, length=5, epochs=2, blocks=2, block_size=3
    ).run_config()
    with (
        entered(tmp_path / config.id),
        pytest.raises(
            SystemExit,
            match=f"Another process is training the run in .*{config.id}. Wait until it ends",
        ),
    ):
        main(["train", "s3", *SMALL_RUN, "--runs", str(tmp_path)])
    assert [path.name for path in (tmp_path / config.id).iterdir()] == ["lock"]


def test_runs_of_registered_mixers_and_tasks_need_their_files(tmp_path):
    train(replace(SMALL, epochs=1), tmp_path)
    file = tmp_path / "config.json"
    text = file.read_text()
    for old, new, message in (
        (
            '"bdlru"',
            '"mine"',
            "was trained with the mixer 'mine'. Give the file that registers it with --files",
        ),
        (
            '"task": "s3"',
            '"task": "my_task"',
            "Unknown task 'my_task'.*give the file that registers it with --files",
        ),
    ):
        assert old in text
        file.write_text(text.replace(old, new))
        with pytest.raises(SystemExit, match=message):
            main(["eval", str(tmp_path)])


def test_a_run_that_cannot_start_leaves_no_files(tmp_path):
    with pytest.raises(SystemExit, match="Unknown option of mixer 'lstm'"):
        main(
            [
                "train",
                "s3",
                "--mixer",
                "lstm",
                "--options",
                "n_blocks=3",
                "--runs",
                str(tmp_path / "runs"),
            ]
        )
    assert not (tmp_path / "runs").exists()


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
