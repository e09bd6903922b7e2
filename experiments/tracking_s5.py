"""State tracking made reliable: S5 with blocks of five, the preset, and the preset without each of its aids.

The preset, as `statemix train` runs it, twenty seeds; then it and every variant with at most 6,000 steps, the first five of them, but all
twenty without the look ahead.  Each trained model is also tested far beyond the sixteen steps it was trained at.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, tracking_preset
from statemix.train.metrics import accuracy_by_length

SEEDS = range(400, 420)  # none of them was looked at while the preset was made; smaller ones were
STEPS = 6000  # for comparisons
RARE = "no look at 256 tokens"  # what one seed of several needs wants more than five
LENGTHS = (16, 64, 256, 1024, 4096)


def preset(seed: int) -> RunConfig:
    model = ModelConfig(options={"n_blocks": 32, "block_size": 5}, width=64)
    return replace(
        tracking_preset(RunConfig("s5", model, train_examples=100_000, seed=seed)), epochs=50
    )


def variants(config: RunConfig) -> dict[str, RunConfig]:
    """The preset, and what it is without one aid."""
    model = config.model
    learned = replace(model, bos=False, options={**model.options, "learn_initial_state": True})
    return {
        "preset, 6,000 steps": config,
        RARE: replace(config, hold=0),
        "no sharpening": replace(config, sharpen=1.0),
        "no restarts": replace(config, restart_after=0),
        "no curriculum": replace(config, curriculum=(), restart_after=2000),
        "no BOS": replace(config, model=replace(model, bos=False)),
        "initial state learnt, no BOS": replace(config, model=learned),
        "lr 5e-3": replace(config, lr=5e-3, restart_after=400),
        "with SwiGLU": replace(config, model=replace(model, channel_mixer="swiglu"), lr=1e-2),
        "blocks of four": replace(
            config, model=replace(model, options={"n_blocks": 40, "block_size": 4})
        ),
    }


def cells() -> Iterator[Cell]:
    yield from (Cell("preset", "S5-100k", "tracking", preset(seed)) for seed in SEEDS)
    for name in variants(preset(0)):
        for seed in SEEDS if name == RARE else SEEDS[:5]:
            yield Cell(
                name, "S5-100k", "tracking", replace(variants(preset(seed))[name], max_steps=STEPS)
            )


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    """Accuracy on fresh sequences of each length."""
    return {"by_length": accuracy_by_length(task, model, LENGTHS, 128, config.seed)}
