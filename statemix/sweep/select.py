"""From runs to numbers: for each cell the learning rate that validates best, and the spread over seeds.

Selection sees validation accuracies only; what is reported is the test accuracy of the chosen runs.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statemix.sweep.ledger import Entry
from statemix.train import config_from_dict


@dataclass(frozen=True)
class Choice:
    """A cell: everything but learning rate and seed, and how the best learning rate did."""

    config: dict[str, Any]
    lr: float
    seeds: int
    validation: float
    mean: float
    deviation: float
    best: float


def choose(entries: Iterable[Entry], metric: str = "token") -> list[Choice]:
    """One choice for each cell among the finished runs."""
    cells: dict[str, dict[float, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    once = {
        entry.id: entry for entry in entries if entry.status == "done"
    }  # two sweeps may have written the same run down
    for entry in once.values():
        cells[cell_of(entry)][entry.config["lr"]].append(entry)
    return [choose_one(json.loads(key), by_lr, metric) for key, by_lr in cells.items()]


def cell_of(entry: Entry) -> str:
    """The config without learning rate and seed, fields that are younger than the entry at their defaults."""
    whole = json.loads(config_from_dict(entry.config).to_json())
    return json.dumps(
        {name: value for name, value in whole.items() if name not in ("lr", "seed")}, sort_keys=True
    )


def choose_one(config: dict[str, Any], by_lr: dict[float, list[Entry]], metric: str) -> Choice:
    """The learning rate whose mean validation accuracy is best."""
    validation = {
        lr: statistics.mean(value(entry, "validation", metric) for entry in entries)
        for lr, entries in by_lr.items()
    }
    lr = max(validation, key=lambda lr: validation[lr])
    tests = [value(entry, "test", metric) for entry in by_lr[lr]]
    deviation = statistics.stdev(tests) if len(tests) > 1 else 0.0
    return Choice(
        config, lr, len(tests), validation[lr], statistics.mean(tests), deviation, max(tests)
    )


def value(entry: Entry, split: str, metric: str) -> float:
    assert entry.result is not None
    return entry.result[split][metric]
