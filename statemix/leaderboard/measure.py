"""What a leaderboard measures of a trained model: accuracy, the length it holds to, a proof.

`measure` is called with every trained model of a sweep, and the ledger keeps what it returns.
"""

from itertools import takewhile
from typing import Any

import numpy as np
from torch import nn

from statemix.layers import BDLRU
from statemix.leaderboard.cells import track_of
from statemix.leaderboard.protocols import Protocol, protocol_of
from statemix.proof import prove
from statemix.tasks import Task
from statemix.train import RunConfig
from statemix.train.metrics import measure_accuracy

__all__ = ["held_length", "measure", "test_accuracy"]

_LENGTHS = 32  # lengths drawn between the shortest and the longest
_ROWS = 64  # sequences of each of them
_HELD_ROWS = 512
_HELD_SHARE = 0.9
_HELD_FIRST, _HELD_LAST = 64, 4096
_VALIDATION, _TEST, _HELD = 101, 102, 103  # streams of random numbers


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    """Validation and test accuracy, the length to which the model holds, and its certificate."""
    protocol = protocol_of(config)
    asked = protocol.test_task(config.task)
    accuracy = test_accuracy(protocol, asked, model, [config.seed, _TEST])
    return {
        "leaderboard": protocol.name,
        "track": track_of(config),
        "validation": test_accuracy(protocol, asked, model, [config.seed, _VALIDATION]),
        "accuracy": accuracy,
        "held": held_length(asked, model, config.seed),
        "certified": accuracy == 1.0 and _is_certified(task, model),
    }


def test_accuracy(protocol: Protocol, task: Task, model: nn.Module, seed: list[int]) -> float:
    """The share of right answers to new sequences of random lengths in the tested range."""
    rng = np.random.default_rng(seed)
    shortest, longest = protocol.tested
    lengths = [n for n in range(shortest, longest + 1) if task.fits(n)]
    found = []
    for length in rng.choice(lengths, _LENGTHS, replace=False):
        examples = task.examples(_ROWS, int(length), rng)
        found.append(measure_accuracy(model, examples, task.classes).sequence)
    return float(np.mean(found))


def held_length(task: Task, model: nn.Module, seed: int) -> int:
    """The largest of 64, 128, .. 4096 up to which 90 % of sequences are right, or 0."""
    lengths = [_HELD_FIRST]
    while lengths[-1] < _HELD_LAST:
        lengths.append(2 * lengths[-1])
    held = list(takewhile(lambda length: _holds(task, model, length, seed), lengths))
    return held[-1] if held else 0


def _holds(task: Task, model: nn.Module, length: int, seed: int) -> bool:
    length = next(n for n in range(length, 0, -1) if task.fits(n))
    examples = task.examples(_HELD_ROWS, length, np.random.default_rng([seed, _HELD, length]))
    return measure_accuracy(model, examples, task.classes).sequence >= _HELD_SHARE


def _is_certified(task: Task, model: nn.Module) -> bool:
    """True if the model is proved right on every word; only BD-LRUs with hard gates can be."""
    mixers = [block.mixer for block in getattr(model, "blocks", ())]
    hard = [isinstance(mixer, BDLRU) and mixer.gate == "hardmax" for mixer in mixers]
    if task.automaton is None or not hard or not all(hard):
        return False
    return prove(model, task.automaton).certificate.holds
