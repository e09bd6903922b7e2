"""The demo's models: one task, blocks of several sizes and others, with equally many states."""

from dataclasses import dataclass, replace

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.train import RunConfig, sharpened_preset, tracking_preset

__all__ = ["ORDER", "STATES", "DemoCell", "cells"]

ORDER = 3  # permutations of so many things
STATES = 96
_WIDTH = 64
_EXAMPLES = 10_000
_STEPS = 1000  # of a model that is not proved
_STAGES = 10  # a stage of the curriculum ends after this share of the steps


@dataclass(frozen=True)
class DemoCell:
    """One model of the demo, and its name on the page."""

    label: str
    config: RunConfig


def cells(seed: int) -> list[DemoCell]:
    """The model that will be proved, then smaller blocks, an H-LRU, Mamba-2 and an LSTM.

    All have the same curriculum. The first ends when it is proved; the others, which never are,
    have a limit of steps.
    """
    model = ModelConfig(width=_WIDTH)
    run = RunConfig(f"s{ORDER}", model, train_examples=_EXAMPLES, epochs=1000, seed=seed)
    return [
        DemoCell("BD-LRU, m = 3", tracking_preset(_with(run, bdlru(3)))),
        DemoCell("BD-LRU, m = 2", _limited(sharpened_preset(_with(run, bdlru(2))))),
        DemoCell("BD-LRU, m = 1 (diagonal)", _limited(sharpened_preset(_with(run, bdlru(1))))),
        DemoCell("H-LRU, m = 3", _limited(sharpened_preset(_with(run, hlru(3))))),
        DemoCell("Mamba-2", _baseline(_with(run, "Mamba2"), lr=4e-3, steps=_STEPS // 2)),
        DemoCell("LSTM", _baseline(_with(run, "LSTM"), lr=5e-3, steps=_STEPS)),
    ]


def _with(run: RunConfig, row: str) -> RunConfig:
    return replace(run, model=with_row(run.model, row, STATES))


def _limited(config: RunConfig, steps: int = _STEPS) -> RunConfig:
    """The run with a limit of steps, in all and in each stage, instead of restarts."""
    return replace(config, hold=0, restart_after=0, stage_steps=steps // _STAGES, max_steps=steps)


def _baseline(run: RunConfig, lr: float, steps: int) -> RunConfig:
    """A limited run with a feed-forward layer, and with a learning rate that suits the mixer."""
    config = _limited(sharpened_preset(run), steps)
    model = replace(config.model, channel_mixer="swiglu")
    return replace(config, model=model, lr=lr, sharpen=1.0)
