"""Accuracy on stories by number of events: a table, and a figure with a chart for each kind."""

import statistics
from collections import defaultdict
from pathlib import Path

from statemix.pages import ACCURACY, Axis, Chart, Figure, Point, Series
from statemix.report.tables import markdown_table
from statemix.sweep import Ledger, load_places

__all__ = ["STORIES", "stories_figure", "stories_table"]

STORIES = "stories.py"
Curve = dict[int, list[float]]  # accuracies by number of events, one for each run


def read_stories(experiment: Path, ledger: Path) -> dict[tuple[str, str], Curve]:
    """The accuracies of every model (row) on every kind of stories (column) that was run."""
    if not experiment.is_file():
        return {}
    done = {entry.id: entry for entry in Ledger(ledger).read()[0] if entry.status == "done"}
    found: dict[tuple[str, str], Curve] = {}
    for cell in load_places(experiment):
        result = done[cell.config.id].result if cell.config.id in done else None
        if result is None:
            continue
        curve = found.setdefault((cell.row, cell.column), defaultdict(list))
        for events, accuracy in result["measured"]["accuracy"].items():
            curve[int(events)].append(accuracy)
    return found


def stories_table(experiment: Path, ledger: Path) -> str:
    """A table with one line for each model and kind; the mean over seeds, and the worst seed."""
    found = read_stories(experiment, ledger)
    if not found:
        return f"The ledger has no run of `experiments/{STORIES}` yet.\n"
    counts = sorted({events for curve in found.values() for events in curve})
    rows = []
    for (row, column), curve in found.items():
        shown = (_shown(curve[events]) if events in curve else "–" for events in counts)
        rows.append((row, column, str(max(map(len, curve.values()))), *shown))
    return markdown_table(("model", "stories", "runs", *map(str, counts)), rows)


def _shown(accuracies: list[float]) -> str:
    """The mean; with several runs, also the lowest."""
    mean = f"{statistics.mean(accuracies):.3f}"
    return f"{mean} ({min(accuracies):.3f})" if len(accuracies) > 1 else mean


def stories_figure(experiment: Path, ledger: Path) -> Figure | None:
    """Accuracy against the number of events, a chart for each kind; nothing without runs."""
    found = read_stories(experiment, ledger)
    if not found:
        return None
    rows = list(dict.fromkeys(row for row, _ in found))
    charts = []
    for column in dict.fromkeys(column for _, column in found):
        lines = [
            Series(row, _points(found[row, column]), colour=i % 8, dash=i // 8)
            for i, row in enumerate(rows)
            if (row, column) in found
        ]
        counts = sorted({int(point.x) - 1 for line in lines for point in line.points})
        ticks = tuple((count + 1, str(count)) for count in counts)
        charts.append(Chart(column, Axis("events", log=True, ticks=ticks), ACCURACY, tuple(lines)))
    return Figure(
        "fig_stories",
        "Stories whose answer is a state",
        "Accuracy of the last word of a story, by the number of events in it. All models are "
        "language models that were trained on stories of up to 8 events. Means over seeds; bars: "
        "from the worst to the best seed.",
        tuple(charts),
    )


def _points(curve: Curve) -> tuple[Point, ...]:
    """The mean at each number of events, and the range over seeds."""
    return tuple(
        Point(events + 1, statistics.mean(own), min(own), max(own), f"n = {len(own)}")
        for events, own in sorted(curve.items())
    )
