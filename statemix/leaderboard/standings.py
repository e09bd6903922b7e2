"""From runs to standings: the rate that validates best, and the spread over seeds."""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from statemix.config.task import RunConfig, config_from_dict
from statemix.leaderboard.cells import ENTRIES, Contestant, Track, track_of
from statemix.leaderboard.protocols import Protocol
from statemix.sweep import Entry

__all__ = ["SOLVED", "Standing", "label_of", "measured", "standings"]

SOLVED = 0.9995  # the accuracy at which the published protocol stops


@dataclass(frozen=True)
class Standing:
    """A contestant on a task: its runs at the learning rate that is best on validation.

    Args:
        accuracy: mean over seeds of the accuracy at the tested lengths.
        sd: its standard deviation, or None for one seed.
        held: the smallest and the largest length to which a seed holds.
        minutes: CPU minutes of training, the largest of all seeds.
        steps: optimiser steps, the most of all seeds.
    """

    mixer: str
    task: str
    track: Track
    lr: float
    seeds: int
    accuracy: float
    sd: float | None
    held: tuple[int, int]
    solved: int
    certified: int
    minutes: float
    steps: int


def standings(entries: Iterable[Entry], protocol: Protocol) -> list[Standing]:
    """One standing for each contestant, task and track with a run, the best contestants first."""
    groups: dict[tuple[str, str, Track], dict[float, list[Entry]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for entry in _latest(entry for entry in entries if _belongs(entry, protocol)):
        config = config_from_dict(entry.config)
        groups[label_of(config), config.task, track_of(config)][config.lr].append(entry)
    found = [_standing(*key, by_lr) for key, by_lr in groups.items()]
    total = {
        key: sum(s.accuracy for s in found if (s.mixer, s.track) == key)
        for key in {(s.mixer, s.track) for s in found}
    }
    return sorted(found, key=lambda s: (-total[s.mixer, s.track], s.mixer))


def _latest(entries: Iterable[Entry]) -> Iterable[Entry]:
    """The last run of each contestant, task, track, rate and seed: the track may have changed."""
    found = {}
    for entry in entries:
        config = config_from_dict(entry.config)
        found[label_of(config), config.task, track_of(config), config.lr, config.seed] = entry
    return found.values()


def _belongs(entry: Entry, protocol: Protocol) -> bool:
    """True if the entry is a finished run of the protocol."""
    return (
        entry.status == "done"
        and "task" in entry.config
        and measured(entry).get("leaderboard") == protocol.name
    )


def measured(entry: Entry) -> dict[str, Any]:
    """What `measure` returned for a finished run."""
    return (entry.result or {}).get("measured", {})


def _standing(mixer: str, task: str, track: Track, by_lr: dict[float, list[Entry]]) -> Standing:
    validation = {
        lr: statistics.mean(measured(entry)["validation"] for entry in entries)
        for lr, entries in by_lr.items()
    }
    lr = max(validation, key=lambda lr: validation[lr])
    runs = [measured(entry) for entry in by_lr[lr]]
    results = [entry.result or {} for entry in by_lr[lr]]
    accuracies = [run["accuracy"] for run in runs]
    held = [run["held"] for run in runs]
    return Standing(
        mixer,
        task,
        track,
        lr,
        seeds=len(runs),
        accuracy=statistics.mean(accuracies),
        sd=statistics.stdev(accuracies) if len(runs) > 1 else None,
        held=(min(held), max(held)),
        solved=sum(accuracy >= SOLVED for accuracy in accuracies),
        certified=sum(run["certified"] for run in runs),
        minutes=max(result["cpu_seconds"] for result in results) / 60,
        steps=max(result["steps"] for result in results),
    )


def label_of(config: RunConfig) -> str:
    """The name of the contestant that a run belongs to; of others, the mixer and its options."""
    model = config.model
    for label, contestant in ENTRIES.items():
        if _is_of(config, contestant):
            return label
    options = " ".join(f"{key}={value}" for key, value in model.options.items())
    return f"{model.mixer} {options}".strip()


def _is_of(config: RunConfig, contestant: Contestant) -> bool:
    model = config.model
    hard = contestant.harden and model.layers == 1
    return (
        model.mixer == contestant.mixer
        and dict(model.options) == contestant.options_for(model.layers)
        and model.channel_mixer == contestant.channel_mixer
        and config.harden == hard
    )
