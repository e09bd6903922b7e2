"""Small runs that several test files train."""

import json
from dataclasses import replace

from statemix.models import ModelConfig
from statemix.optim import is_inner_matrix
from statemix.runs.checkpoint import load_checkpoint, save_checkpoint
from statemix.train import RunConfig
from statemix.train.state import start_run

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


CURRICULUM = replace(SMALL, curriculum=(2, 4), restart_after=5, epochs=20)


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


TINY = ["--examples", "128", "--width", "8", "--length", "5", "--epochs", "2"]

SMALL_RUN = [*TINY, "--blocks", "2", "--block-size", "3"]

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
