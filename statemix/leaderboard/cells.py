"""The runs of a contestant on the two tracks of a protocol.

    open        the same lengths, any training on them: here prefixes that grow once they are
                learned, their answers, restarts, and two learning rates, alike for all
    published   the protocol's own batches, rate and lengths, without growing prefixes

On the open track a model has width 64, and one layer or, for modular arithmetic, two. A contestant
enters with the rate that is best on validation.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from statemix.config.model import ChannelMixer, ModelConfig
from statemix.config.presets import tracking_preset
from statemix.config.task import RunConfig
from statemix.leaderboard.protocols import Protocol, Training

__all__ = [
    "ENTRIES",
    "RATES",
    "SEEDS",
    "Contestant",
    "Track",
    "cells",
    "find_entries",
    "published_cells",
    "track_of",
]

Track = Literal["open", "published"]
RATES = (2e-2, 3e-3)
SEEDS = (0, 1, 2)
_WIDTH = 64
_EPOCH = 1000  # steps between validations on the published track
_SOLVED = 0.9995


@dataclass(frozen=True)
class Contestant:
    """A mixer with its options, and the channel mixer after it.

    With `harden`, gates become hard in the decay. In two layers they are hard from the start, and
    the run is that of `tracking_preset`: words grow, and it restarts if the model is not proved.
    """

    mixer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    channel_mixer: ChannelMixer = "swiglu"
    harden: bool = False

    def options_for(self, layers: int) -> dict[str, Any]:
        """The options of the mixer in a model with so many layers."""
        hard = {"gate": "hardmax"} if self.harden and layers > 1 else {}
        return {**self.options, **hard}


# With a linear readout and hard gates at the end, a BD-LRU is an automaton, which can be proved.
_LINEAR: ChannelMixer = "none"
_BLOCKS = {"n_blocks": 32, "block_size": 5}
_HEADS = {"heads": 2, "head_dim": 32}
ENTRIES = {
    "BD-LRU m5, hard": Contestant("bdlru", _BLOCKS, _LINEAR, harden=True),
    "BD-LRU m5": Contestant("bdlru", _BLOCKS, _LINEAR),
    "LSTM": Contestant("lstm", {"hidden": 64}),
    "Gated DeltaProduct": Contestant("deltaproduct", {**_HEADS, "products": 2}),
    "Gated DeltaNet": Contestant("gated_deltanet", _HEADS),
    "DeltaNet": Contestant("deltanet", _HEADS),
    "RWKV-7": Contestant("rwkv7", {"head_dim": 32}),
    "Mamba-3": Contestant("mamba3", {"d_state": 64}),
    "PD-SSM": Contestant("pdssm", {}),
    "SLiCE b4": Contestant("slice", {"block_size": 4}),
    "SLiCE b16": Contestant("slice", {"block_size": 16}),
    "H-LRU m5": Contestant("hlru", {"n_channels": 32, "order": 5}),
    "Mamba": Contestant("mamba", {}),
    "Mamba-2": Contestant("mamba2", {}),
    "LRU": Contestant("lru", {"n": 64}),
    "Convolution": Contestant("conv", {}),
    "Attention": Contestant("attention", {}),
}


def find_entries(patterns: Sequence[str]) -> list[Contestant]:
    """The built-in entries whose names match one of the patterns; each must match some entry."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in ENTRIES):
            raise ValueError(f"No entry matches {pattern!r}. Available: {', '.join(ENTRIES)}.")
    return [
        entry
        for name, entry in ENTRIES.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def cells(
    protocol: Protocol,
    contestant: Contestant,
    *,
    tasks: Sequence[str] = (),
    rates: Sequence[float] = RATES,
    seeds: Sequence[int] = SEEDS,
) -> Iterator[RunConfig]:
    """The runs of a contestant on the open track: first all tasks and rates of the first seed."""
    for seed in seeds:
        for task in tasks or protocol.tasks:
            for lr in rates:
                yield _open(protocol, contestant, task, lr, seed)


def _open(protocol: Protocol, contestant: Contestant, task: str, lr: float, seed: int) -> RunConfig:
    """One run on the open track; steps have 2,048 tokens until sequences are long."""
    trial = protocol.tasks[task]
    model = ModelConfig(
        mixer=contestant.mixer,
        options=contestant.options_for(trial.layers),
        width=_WIDTH,
        layers=trial.layers,
        channel_mixer=contestant.channel_mixer,
    )
    config = RunConfig(
        task,
        model,
        task_options={} if protocol.answers is None else {"answers": protocol.answers},
        length=_longest(protocol, task),
        train_examples=100_000,
        lr=lr,
        clip=1.0,
        warmup=100,
        curriculum=protocol.growing,
        restart_after=1500,
        decay=300,
        harden=contestant.harden and trial.layers == 1,
        max_steps=trial.steps,
        patience=0,
        solved=2.0,
        seed=seed,
    )
    config = replace(config, epochs=math.ceil(trial.steps / config.steps_per_epoch))
    if not contestant.harden or trial.layers == 1:
        return config
    words = tracking_preset(config)
    return replace(words, lr=lr, hold=0)


def published_cells(
    protocol: Protocol,
    contestant: Contestant,
    *,
    tasks: Sequence[str] = (),
    seeds: Sequence[int] = SEEDS,
    steps: int = 0,
) -> Iterator[RunConfig]:
    """The runs of a contestant on the published track; an epoch is a thousand steps.

    A run stops when its validation accuracy, at the tested lengths, is above .9995.

    Args:
        steps: train for so many steps instead of the protocol's, with a shorter schedule.
    """
    if protocol.published is None:
        raise ValueError(
            f"The protocol {protocol.name!r} has no published training. Use the open track."
        )
    for seed in seeds:
        for task in tasks or protocol.tasks:
            yield _published(protocol, protocol.published, contestant, task, seed, steps)


def _published(
    protocol: Protocol,
    training: Training,
    contestant: Contestant,
    task: str,
    seed: int,
    steps: int,
) -> RunConfig:
    """One run on the published track."""
    model = ModelConfig(
        mixer=contestant.mixer,
        options=contestant.options_for(training.layers),
        width=training.width,
        layers=training.layers,
        channel_mixer=contestant.channel_mixer,
    )
    total = steps or training.steps
    return RunConfig(
        task,
        model,
        task_options={"shortest": training.shortest},
        length=_longest(protocol, task),
        train_examples=_EPOCH * training.batch,
        fresh=True,
        tested=protocol.tested,
        batch=training.batch,
        epochs=math.ceil(total / _EPOCH),
        max_steps=total,
        patience=0,
        solved=_SOLVED,
        lr=training.lr,
        weight_decay=training.weight_decay,
        warmup=training.warmup,
        clip=0.0,
        seed=seed,
    )


def _longest(protocol: Protocol, task: str) -> int:
    """The longest training length that the task has."""
    fits = protocol.test_task(task).fits
    return max(filter(fits, range(1, protocol.longest + 1)))


def track_of(config: RunConfig) -> Track:
    """The track that a run belongs to: prefixes grow on the open one only."""
    return "open" if config.curriculum else "published"
