"""Charts as data: a page draws them in the browser, a report also as SVG and PDF.

A chart has a title, two axes and series of points. The numbers of a chart are those of the table
that a page offers below it, and its description in words is derived from them.
"""

import math
from dataclasses import dataclass

__all__ = ["ACCURACY", "Axis", "Chart", "Figure", "Point", "Series"]


@dataclass(frozen=True)
class Point:
    """A mean with the ends of its bar, and what the tooltip adds."""

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    words: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one colour, joined by a line unless `line` is False."""

    name: str
    points: tuple[Point, ...]
    line: bool = True
    colour: int = -1
    """Number of the colour; by default the position in the chart."""
    dash: int = 0
    """0: solid, 1: dashed, 2: dotted."""
    hollow: bool = False
    """True for points that are rings."""
    band: bool = False
    """True to shade the range from `low` to `high` instead of drawing bars."""


@dataclass(frozen=True)
class Axis:
    """A label, the ticks by value, and the range; by default the range of the points."""

    label: str
    log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    low: float | None = None
    high: float | None = None


ACCURACY = Axis(
    "accuracy", ticks=((0, "0"), (0.25, ".25"), (0.5, ".5"), (0.75, ".75"), (1, "1")), low=0, high=1
)


@dataclass(frozen=True)
class Chart:
    """One pair of axes."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    square: bool = False

    @property
    def alt(self) -> str:
        """The chart in words: its axes, and the first and last point of each series."""
        words = "; ".join(_in_words(series, self.x) for series in self.series if series.points)
        return f"{self.title}. {self.y.label} against {self.x.label}. {words}."


@dataclass(frozen=True)
class Figure:
    """Charts side by side, with a caption that says what was run, how often, and the spread."""

    name: str
    title: str
    caption: str
    charts: tuple[Chart, ...]


def _in_words(series: Series, axis: Axis) -> str:
    names = dict(axis.ticks)

    def at(point: Point) -> str:
        where = names.get(point.x, f"{point.x:,.6g}") if not axis.log else f"{point.x:,.6g}"
        return f"{point.y:,.3g} at {where}"

    first, last = series.points[0], series.points[-1]
    if len(series.points) == 1 or math.isnan(last.y):
        return f"{series.name}: {at(first)}"
    return f"{series.name}: from {at(first)} to {at(last)}"
