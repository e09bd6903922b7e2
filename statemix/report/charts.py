"""Charts of gathered places: accuracy against block size, states, samples, parameters or length."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from statemix.pages import ACCURACY, Axis, Chart, Point, Series
from statemix.report.gather import Measured, Place, result_of
from statemix.report.names import kind_of, plain_column, plain_row, size_of

__all__ = [
    "by_examples",
    "by_length",
    "by_parameters",
    "by_recipe",
    "by_seed",
    "by_size",
    "by_states",
    "mean_point",
]

KINDS = ("BD-LRU", "H-LRU", "Conv")
_SHADED = 4  # at most this many lines have a shaded range; others have bars
Found = list[tuple[Place, Measured]]


def found_in(places: Iterable[Place]) -> Found:
    """Each place that has been run, with the recipe that represents it."""
    return [(place, place.best) for place in places if place.best is not None]


def mean_point(x: float, measured: Measured, words: str = "") -> Point:
    """The mean over seeds, with a bar of one standard deviation on both sides."""
    choice = measured.choice
    n = f"n = {choice.seeds}" + (f", best {choice.best:.3f}" if choice.seeds > 1 else "")
    said = f"{n}; {words}" if words else n
    if choice.seeds == 1:
        return Point(x, choice.mean, words=said)
    low, high = choice.mean - choice.deviation, choice.mean + choice.deviation
    return Point(x, choice.mean, max(low, 0.0), min(high, 1.0), said)


def _unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _numbers(column: str) -> int:
    """The number in a column such as "compress, 64 states"."""
    return int(column.split()[1])


def _line(name: str, points: Iterable[Point], colour: int, dash: int = 0) -> Series:
    ordered = tuple(sorted(points, key=lambda point: point.x))
    return Series(name, ordered, colour=colour, dash=dash)


def by_size(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy against m: a chart for each layer, a line for each column."""
    charts = []
    columns = _unique(place.column for place in places)
    for kind in KINDS[:2]:
        own = [pair for pair in found_in(places) if kind_of(pair[0].row) == kind]
        sizes = sorted({m for place, _ in own if (m := size_of(place.row)) is not None})
        lines = [
            _line(
                plain_column(column),
                (
                    mean_point(sizes.index(size_of(place.row) or 0), best, best.recipe)
                    for place, best in own
                    if place.column == column and size_of(place.row) in sizes
                ),
                colour=columns.index(column) % 8,
                dash=columns.index(column) // 8,
            )
            for column in columns
        ]
        if own:
            x = "block size m" if kind == "BD-LRU" else "order m"
            ticks = tuple((i, str(m)) for i, m in enumerate(sizes))
            charts.append(Chart(kind, Axis(x, ticks=ticks), ACCURACY, _drawn(lines)))
    return tuple(charts)


def by_parameters(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy against parameters: a chart for each column, a line for each layer."""
    charts = []
    kinds = _unique(kind_of(place.row) for place in places)
    for column in _unique(place.column for place in places):
        own = [pair for pair in found_in(places) if pair[0].column == column]
        lines = [
            _line(
                "convolution" if kind == "Conv" else plain_row(kind),
                (
                    mean_point(result_of(best.chosen)["parameters"], best, plain_row(place.row))
                    for place, best in own
                    if kind_of(place.row) == kind
                ),
                colour=i % 8,
            )
            for i, kind in enumerate(kinds)
        ]
        title = f"{plain_column(column)} selectivity" if column != "none" else "no selectivity"
        charts.append(Chart(title, Axis("parameters", log=True), ACCURACY, _drawn(lines)))
    return tuple(charts)


def by_states(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy against the number of states: a chart for each task, a line for each model."""
    return _by_number(places, lambda place: place.column.split(",")[0], "states of the layer")


def by_examples(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy against the number of training sequences: a chart for each group."""
    return _by_number(places, lambda place: place.column.split(",")[0], "training sequences")


def _by_number(
    places: Sequence[Place], group_of: Callable[[Place], str], label: str
) -> tuple[Chart, ...]:
    charts = []
    rows = _unique(place.row for place in places)
    for group in _unique(map(group_of, places)):
        own = [pair for pair in found_in(places) if group_of(pair[0]) == group]
        ticks = tuple((n, f"{n:,}") for n in sorted({_numbers(place.column) for place, _ in own}))
        lines = [
            _line(
                plain_row(row),
                (
                    mean_point(_numbers(p.column), best, best.recipe)
                    for p, best in own
                    if p.row == row
                ),
                colour=i % 8,
            )
            for i, row in enumerate(rows)
        ]
        x = Axis(label, log=True, ticks=ticks)
        charts.append(Chart(plain_column(group), x, ACCURACY, _drawn(lines)))
    return tuple(charts)


def by_length(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy against test length: the median over seeds, and the range of all seeds."""
    charts = []
    rows = _unique(place.row for place in places)
    for column in _unique(place.column for place in places):
        own = [pair for pair in found_in(places) if pair[0].column == column]
        lines = [
            _length_line(plain_row(place.row), best, rows.index(place.row), len(own) <= _SHADED)
            for place, best in own
        ]
        lengths = sorted({int(point.x) for line in lines for point in line.points})
        ticks = tuple((length, f"{length:,}") for length in lengths)
        x = Axis("tokens of the test sequences", log=True, ticks=ticks)
        charts.append(Chart(plain_column(column), x, ACCURACY, _drawn(lines)))
    return tuple(charts)


def _length_line(name: str, best: Measured, i: int, band: bool) -> Series:
    curves = [
        result_of(entry)["measured"]["by_length"]
        for entry in best.entries
        if "by_length" in result_of(entry).get("measured", {})
    ]
    lengths = sorted({int(length) for curve in curves for length in curve})
    points = []
    for length in lengths:
        values = [curve[str(length)] for curve in curves if str(length) in curve]
        middle = statistics.median(values)
        points.append(Point(length, middle, min(values), max(values), f"n = {len(values)}"))
    return Series(name, tuple(points), colour=i % 8, dash=i // 8, band=band)


def by_seed(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy of each run: a column for each place."""
    names, points = [], []
    for place, best in found_in(places):
        names.append(_short_name(place, places))
        for entry in best.entries:
            value = result_of(entry)["test"]["token"]
            points.append(Point(len(names) - 1, value, words=f"seed {entry.config['seed']}"))
    x = Axis("model", ticks=tuple(enumerate(names)), low=-0.5, high=len(names) - 0.5)
    return (Chart("", x, ACCURACY, (Series("a run", tuple(points), line=False),)),)


def by_recipe(places: Sequence[Place]) -> tuple[Chart, ...]:
    """Accuracy of each recipe: a chart for each column, a series for each row."""
    charts = []
    rows = _unique(place.row for place in places)
    for column in _unique(place.column for place in places):
        own = [place for place in places if place.column == column and place.measured]
        recipes = _unique(measured.recipe for place in own for measured in place.measured)
        series = [
            Series(
                plain_row(place.row),
                tuple(mean_point(recipes.index(m.recipe), m) for m in place.measured),
                line=False,
                colour=rows.index(place.row),
            )
            for place in own
        ]
        x = Axis("start", ticks=tuple(enumerate(recipes)), low=-0.5, high=len(recipes) - 0.5)
        charts.append(Chart(plain_column(column), x, ACCURACY, tuple(series)))
    return tuple(chart for chart in charts if chart.series)


def _short_name(place: Place, places: Sequence[Place]) -> str:
    """The row, and the column if there are several."""
    several = len({other.column for other in places}) > 1
    return f"{plain_row(place.row)}, {place.column}" if several else plain_row(place.row)


def _drawn(lines: Iterable[Series]) -> tuple[Series, ...]:
    return tuple(line for line in lines if line.points)
