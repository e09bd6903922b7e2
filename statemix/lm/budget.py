"""How many optimiser steps fit into a time budget on this machine."""

import time

from statemix.config.lm import Execution, LMRunConfig
from statemix.data import TokenData
from statemix.lm.ranks import Ranks
from statemix.lm.step import start, train_step

__all__ = ["steps_in"]

_WARM_UP = 2  # untimed steps
_TIMED = 5  # timed steps
_SHARE = 0.9  # of the time that steps may take; the rest is for validation and saving


def steps_in(
    minutes: float, config: LMRunConfig, execution: Execution, data: TokenData, ranks: Ranks
) -> int:
    """Time a few steps on every rank, and return how many fit into `minutes`."""
    run = start(config, execution, data, ranks)
    for _ in range(_WARM_UP):
        train_step(run)
    started = time.perf_counter()
    for _ in range(_TIMED):
        train_step(run)
    seconds = ranks.total((time.perf_counter() - started) / _TIMED)[0] / ranks.size
    return max(1, int(_SHARE * 60 * minutes / seconds))
