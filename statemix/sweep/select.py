"""From runs to numbers: the learning rate that validates best, and the spread over seeds.

Of a task, the numbers are accuracies: validation selects, test is reported. Of a language model
they are perplexities on the held-out text, which both select and are reported.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statemix.sweep.kinds import read_config
from statemix.sweep.ledger import Entry

__all__ = ["Choice", "choose", "setting_of"]


@dataclass(frozen=True)
class Choice:
    """The runs at the selected learning rate, of all that differ in learning rate and seed only."""

    config: dict[str, Any]
    lr: float
    seeds: int
    validation: float
    mean: float
    deviation: float
    best: float


def choose(entries: Iterable[Entry], metric: str = "token") -> list[Choice]:
    """One choice for each setting among the finished runs; a run counts once."""
    settings: dict[str, dict[float, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    once = {entry.id: entry for entry in entries if entry.status == "done"}
    for entry in once.values():
        settings[setting_of(entry)][entry.config["lr"]].append(entry)
    return [_choose_lr(json.loads(key), by_lr, metric) for key, by_lr in settings.items()]


def setting_of(entry: Entry) -> str:
    """The config without learning rates and seed; fields newer than the entry have defaults."""
    whole = json.loads(read_config(entry.config).to_json())
    varied = ("lr", "seed") if "task" in whole else ("lr", "matrix_lr", "seed")
    setting = {name: value for name, value in whole.items() if name not in varied}
    return json.dumps(setting, sort_keys=True)


def _choose_lr(config: dict[str, Any], by_lr: dict[float, list[Entry]], metric: str) -> Choice:
    """The learning rate with the best mean on validation."""
    best = max if "task" in config else min
    validation = {
        lr: statistics.mean(_value(entry, "validation", metric) for entry in entries)
        for lr, entries in by_lr.items()
    }
    lr = best(validation, key=lambda lr: validation[lr])
    tests = [_value(entry, "test", metric) for entry in by_lr[lr]]
    deviation = statistics.stdev(tests) if len(tests) > 1 else 0.0
    return Choice(
        config, lr, len(tests), validation[lr], statistics.mean(tests), deviation, best(tests)
    )


def _value(entry: Entry, split: str, metric: str) -> float:
    assert entry.result is not None
    if "task" in entry.config:
        return entry.result[split][metric]
    return entry.result["perplexity"]
