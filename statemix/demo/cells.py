"""The demo's models: two tasks, each with equally many states in blocks of different sizes.

One model per task is four times as wide.
"""

from dataclasses import dataclass, replace

from statemix.models import ModelConfig
from statemix.train import RunConfig

__all__ = ["DemoCell", "cells"]


@dataclass(frozen=True)
class DemoCell:
    """One model of the demo, and its name in the table."""

    label: str
    states: int
    config: RunConfig


def _bdlru(task: RunConfig, states: int, m: int) -> DemoCell:
    options = {"n_blocks": states // m, "block_size": m}
    return _cell(task, f"BD-LRU, blocks of {m}", states, "bdlru", options)


def _cell(
    task: RunConfig, label: str, states: int, mixer: str, options: dict[str, int]
) -> DemoCell:
    model = replace(task.model, mixer=mixer, options=options)
    return DemoCell(label, states, replace(task, model=model))


def cells(seed: int) -> list[DemoCell]:
    """The models for products of permutations, then those for walks on a cycle of five."""
    shared = RunConfig(
        "s3",
        ModelConfig(width=32, channel_mixer="none"),
        clip=1.0,
        epochs=8,
        test_examples=1000,
        solved=2.0,
        seed=seed,
    )
    s3 = replace(shared, lr=3e-3)
    walk = replace(
        shared, task="cycle_nav", length=24, lr=1e-2, model=replace(shared.model, width=64)
    )
    return [
        _bdlru(s3, 24, 1),
        _bdlru(s3, 96, 1),
        _bdlru(s3, 24, 2),
        _bdlru(s3, 24, 3),
        _cell(s3, "H-LRU of order 3", 24, "hlru", {"n_channels": 8, "order": 3}),
        _cell(s3, "LSTM", 24, "lstm", {"hidden": 24}),
        _bdlru(walk, 40, 1),
        _bdlru(walk, 160, 1),
        _bdlru(walk, 40, 4),
        _bdlru(walk, 40, 5),
    ]
