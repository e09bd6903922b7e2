"""The paper's figure 1 C and D: mean accuracy over tasks, against operations and against m.

The tasks are recall, copying, compression and permutations. The accuracy on permutations is the
mean over the five columns of its table.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from statemix.analysis.flops import step_cost
from statemix.models import ModelConfig
from statemix.pages import ACCURACY, Axis, Chart, Point, Series
from statemix.paper import read_values
from statemix.report.gather import Measured, Place
from statemix.report.names import kind_of, plain_row, size_of

__all__ = ["best_by_size", "by_cost"]

_TABLES = ("table_mad", "table_groups")
_MEAN = replace(ACCURACY, label="mean accuracy over four tasks")


def by_cost(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Mean accuracy of each row against its mean operations, ours and the paper's."""
    series = []
    paper = _paper_means()
    ours = _our_means(places)
    for i, kind in enumerate(dict.fromkeys(kind_of(row) for row in ours)):
        rows = [row for row in ours if kind_of(row) == kind]
        measured = tuple(Point(ours[row][0], ours[row][1], words=plain_row(row)) for row in rows)
        theirs = tuple(Point(ours[row][0], paper[row], words=plain_row(row)) for row in rows)
        series += [
            Series(plain_row(kind), measured, False, colour=i),
            Series(f"{plain_row(kind)}, the paper", theirs, False, colour=i, hollow=True),
        ]
    x = Axis("floating-point operations of a recurrent step", log=True)
    return (Chart("", x, _MEAN, tuple(series)),) if series else ()


def best_by_size(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Mean accuracy against m, ours and the paper's."""
    paper, ours = _paper_means(), _our_means(places)
    sizes = sorted({m for row in ours if (m := size_of(row)) is not None})
    series = []
    for i, kind in enumerate(("BD-LRU", "H-LRU")):
        rows = [row for row in ours if kind_of(row) == kind]
        rows.sort(key=lambda row: size_of(row) or 0)
        places_of = {row: sizes.index(size_of(row) or 0) for row in rows}
        measured = tuple(Point(places_of[row], ours[row][1]) for row in rows)
        theirs = tuple(Point(places_of[row], paper[row]) for row in rows)
        series += [
            Series(kind, measured, colour=i),
            Series(f"{kind}, the paper", theirs, colour=i, dash=1, hollow=True),
        ]
    x = Axis("block size m, order m", ticks=tuple((i, str(m)) for i, m in enumerate(sizes)))
    drawn = tuple(line for line in series if line.points)
    return (Chart("", x, _MEAN, drawn),) if drawn else ()


def _paper_means() -> dict[str, float]:
    """The paper's mean over four tasks of each row."""
    by_row: dict[str, dict[str, dict[str, float]]] = {}
    for value in read_values():
        if value.table in _TABLES and value.column != "overall":
            by_row.setdefault(value.row, {}).setdefault(value.table, {})[value.column] = (
                value.accuracy
            )
    return {
        row: _mean_of_four(tables["table_mad"], tables["table_groups"])
        for row, tables in by_row.items()
        if len(tables) == 2
    }


def _mean_of_four(mad: dict[str, float], groups: dict[str, float]) -> float:
    return statistics.mean([*mad.values(), statistics.mean(groups.values())])


def _our_means(places: Sequence[Place]) -> dict[str, tuple[float, float]]:
    """Mean operations and mean accuracy of each row that is measured in all columns."""
    columns = {
        table: {v.column for v in read_values() if v.table == table} - {"overall"}
        for table in _TABLES
    }
    found: dict[str, tuple[float, float]] = {}
    for row in _paper_means():
        best = {
            table: {
                place.column: place.best
                for place in places
                if place.row == row and place.experiment == table
                if place.best is not None and place.column in columns[table]
            }
            for table in _TABLES
        }
        if all(len(best[table]) == len(columns[table]) for table in _TABLES):
            found[row] = (_mean_cost(best), _mean_accuracy(best))
    return found


def _mean_cost(best: dict[str, dict[str, Measured]]) -> float:
    """The mean over four tasks of the operations of the models that were run."""
    costs = {
        table: {
            column: float(step_cost(ModelConfig(**measured.chosen.config["model"])).formula)
            for column, measured in by_column.items()
        }
        for table, by_column in best.items()
    }
    return _mean_of_four(costs["table_mad"], costs["table_groups"])


def _mean_accuracy(best: dict[str, dict[str, Measured]]) -> float:
    means = {
        table: {column: measured.choice.mean for column, measured in by_column.items()}
        for table, by_column in best.items()
    }
    return _mean_of_four(means["table_mad"], means["table_groups"])
