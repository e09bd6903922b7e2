"""Resuming to the same bits, and what protects the files of a run."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import (
    CLOCKS,
    CURRICULUM,
    SMALL,
    SMALL_RUN,
    comparable,
    interrupt_at,
    metrics,
    numbered_moments,
)

from statemix.cli import main
from statemix.commands.train import Train
from statemix.files.writing import write_atomically
from statemix.runs.checkpoint import DamagedCheckpoint, load_checkpoint, save_checkpoint
from statemix.runs.lock import entered
from statemix.train import (
    loop,
    train,
)


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
