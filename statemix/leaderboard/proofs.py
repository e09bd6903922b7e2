"""Runs of other experiments on a protocol's tasks that ended with a proof, or without one.

A model that is proved right at every length is right at the tested lengths, so these runs belong to
the open track. Of a run that could not be proved, the accuracy at those lengths is not known.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statemix.config.task import RunConfig, config_from_dict
from statemix.leaderboard.protocols import Protocol
from statemix.leaderboard.standings import label_of, measured
from statemix.sweep import Entry

__all__ = ["ProvedRuns", "proved_runs"]


@dataclass(frozen=True)
class ProvedRuns:
    """Runs that differ only in the seed, and how many of them are proved.

    Args:
        length: length of the longest training sequences.
        answers: "end" for one answer per word, "prefixes" or "every step".
        minutes: median and largest CPU minutes of training, restarts included.
    """

    mixer: str
    task: str
    layers: int
    length: int
    answers: str
    seeds: int
    proved: int
    minutes: tuple[float, float]


def proved_runs(entries: Iterable[Entry], protocol: Protocol) -> list[ProvedRuns]:
    """One row for each setting, in the order of the protocol's tasks."""
    groups: dict[str, list[Entry]] = defaultdict(list)
    for entry in {entry.id: entry for entry in entries}.values():
        if entry.status == "done" and _asks_for_proof(entry, protocol):
            setting = {name: x for name, x in entry.config.items() if name != "seed"}
            groups[json.dumps(setting, sort_keys=True)].append(entry)
    rows = [_row(runs, protocol) for runs in groups.values()]
    tasks = list(protocol.tasks)
    return sorted(rows, key=lambda row: (tasks.index(row.task), -row.proved / row.seeds))


def _asks_for_proof(entry: Entry, protocol: Protocol) -> bool:
    """True if a run of another experiment was to be proved, and trained within the lengths."""
    config = entry.config
    if config.get("task") not in protocol.tasks or "leaderboard" in measured(entry):
        return False
    length = config["length"] or protocol.test_task(config["task"]).length
    return length <= protocol.longest and (
        config.get("certify", False) or "holds" in measured(entry)
    )


def _row(runs: list[Entry], protocol: Protocol) -> ProvedRuns:
    config = config_from_dict(runs[0].config)
    minutes = [(entry.result or {})["cpu_seconds"] / 60 for entry in runs]
    return ProvedRuns(
        _name(config),
        config.task,
        config.model.layers,
        config.length or protocol.test_task(config.task).length,
        "every step" if protocol.answers is None else config.task_options.get("answers", "end"),
        len(runs),
        sum(_is_proved(entry.result or {}) for entry in runs),
        (statistics.median(minutes), max(minutes)),
    )


def _name(config: RunConfig) -> str:
    """BD-LRU with its block size, or what the leaderboard calls the mixer."""
    size = config.model.options.get("block_size")
    return f"BD-LRU m{size}" if config.model.mixer == "bdlru" else label_of(config)


def _is_proved(result: dict[str, Any]) -> bool:
    """True if the run ended with a certificate, or `measure` found one."""
    found = result.get("certificate") or result.get("measured", {})
    return bool(found.get("holds"))
