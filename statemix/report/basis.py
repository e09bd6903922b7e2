"""What a figure rests on: seeds, sizes, sequences, and the share of the paper's training.

The paper trains for 200 epochs. A run's share is the number of sequences that it has seen, with
repetitions, divided by 200 times the number of the paper's training sequences.
"""

import statistics
from collections.abc import Iterable

from statemix.paper import EPOCHS, SEQUENCES
from statemix.report.gather import Place, result_of
from statemix.sweep import Entry

__all__ = ["percent", "share_of", "what_was_run"]


def share_of(entry: Entry, column: str) -> float | None:
    """The share of the paper's training in a run, or None if the paper does not give it."""
    if column not in SEQUENCES:
        return None
    seen = result_of(entry)["steps"] * entry.config["batch"]
    return seen / (EPOCHS * max(SEQUENCES[column]))


def what_was_run(places: Iterable[Place], spread: str) -> str:
    """The runs behind a figure: their sizes, how many seeds there are, and how these are drawn."""
    shown = [(place, place.best) for place in places if place.best is not None]
    runs = [(place.column, entry) for place, best in shown for entry in best.entries]
    if not runs:
        return ""
    configs = [entry.config for _, entry in runs]
    sizes = [
        f"width {_span(config['model']['width'] for config in configs)}",
        f"{_span(config['train_examples'] for config in configs)} training sequences",
        f"{_span(result_of(entry)['steps'] for _, entry in runs)} steps",
        f"median {statistics.median(result_of(e)['cpu_seconds'] for _, e in runs):.0f} CPU seconds",
    ]
    shares = [share for column, entry in runs if (share := share_of(entry, column)) is not None]
    if shares:
        sizes.append(f"median {percent(statistics.median(shares))} of the paper's training")
    seeds = [best.choice.seeds for _, best in shown]
    noun = "seed" if max(seeds) == 1 else "seeds"
    n = f"n = {_span(seeds)} {noun} for each of {len(shown)} means"
    drawn = spread if max(seeds) > 1 else "no spread is known"
    return f"Runs: {', '.join(sizes)}. {n}; {drawn}."


def percent(share: float) -> str:
    """A share in per cent, to two digits."""
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def _span(values: Iterable[int]) -> str:
    """The smallest and the largest value."""
    found = sorted(set(values))
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"
