"""Matplotlib draws figures as SVG and PDF; the same numbers give the same files."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "statemix"
import matplotlib.pyplot as plt  # noqa: E402

from statemix.pages import Axis, Chart, Figure, Series  # noqa: E402

__all__ = ["save_figure"]

_COLOURS = ["#3a66d8", "#d98e04", "#d6402e", "#2c8f48", "#8b4be0", "#8f6146", "#12817d", "#5b616b"]
_STYLES = ["-", "--", ":"]
_COLUMNS = 3  # charts beside each other


def save_figure(figure: Figure, out: Path) -> list[Path]:
    """Write a figure as SVG and PDF, without a time stamp, and return the paths."""
    columns = min(len(figure.charts), _COLUMNS)
    rows = -(-len(figure.charts) // columns)
    size = (max(4.6 * columns, 6.4), 4.2 * rows + 0.4)
    canvas, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis, chart in zip(axes.flat, figure.charts, strict=False):
        _draw_chart(axis, chart)
    for axis in axes.flat[len(figure.charts) :]:
        axis.remove()
    canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=11)
    written = [out / f"{figure.name}.{kind}" for kind in ("svg", "pdf")]
    canvas.draw_without_rendering()
    canvas.set_layout_engine("none")  # the layout is the same for both files
    for path in written:
        canvas.savefig(path, metadata=_metadata(figure, path.suffix))
    plt.close(canvas)
    return written


def _metadata(figure: Figure, suffix: str) -> dict[str, Any]:
    """The title and the caption, which a reader of the file alone needs."""
    if suffix == ".svg":
        return {"Date": None, "Title": figure.title, "Description": figure.caption}
    return {"CreationDate": None, "Title": figure.title, "Subject": figure.caption}


def _draw_chart(axis: Any, chart: Chart) -> None:
    for i, series in enumerate(chart.series):
        _draw_series(axis, series, i)
    axis.set_title(chart.title, loc="left", fontsize=10)
    axis.grid(axis="y", alpha=0.3)
    _set_axis(axis.xaxis, axis.set_xscale, axis.set_xlim, chart.x)
    _set_axis(axis.yaxis, axis.set_yscale, axis.set_ylim, chart.y)
    axis.set_xlabel(chart.x.label, fontsize=9)
    axis.set_ylabel(chart.y.label, fontsize=9)
    axis.tick_params(labelsize=8)
    if any(len(name) > 7 for _, name in chart.x.ticks):
        axis.tick_params(axis="x", labelrotation=60)
    if chart.square:
        axis.set_aspect("equal")
    if len(chart.series) > 1:
        axis.legend(fontsize=7)


def _set_axis(axis: Any, set_scale: Any, set_limits: Any, spec: Axis) -> None:
    """Scale, ticks and range of one axis."""
    set_scale("log" if spec.log else "linear")
    if spec.ticks:
        axis.set_ticks([value for value, _ in spec.ticks], [name for _, name in spec.ticks])
        axis.minorticks_off()
    if spec.low is not None and spec.high is not None:
        space = 0.03 * (spec.high - spec.low)
        set_limits(spec.low - space, spec.high + space)


def _draw_series(axis: Any, series: Series, i: int) -> None:
    """Points with their bars or their shading, and the line through them."""
    colour = _COLOURS[(i if series.colour < 0 else series.colour) % len(_COLOURS)]
    xs = [point.x for point in series.points]
    ys = [point.y for point in series.points]
    lows = [point.y if point.low is None else point.low for point in series.points]
    highs = [point.y if point.high is None else point.high for point in series.points]
    style = _STYLES[series.dash % len(_STYLES)] if series.line else ""
    face = "white" if series.hollow else colour
    axis.plot(
        xs,
        ys,
        marker="o",
        markersize=4,
        color=colour,
        markerfacecolor=face,
        linestyle=style,
        label=series.name,
    )
    if series.band:
        axis.fill_between(xs, lows, highs, color=colour, alpha=0.15, linewidth=0)
    elif lows != highs:
        axis.vlines(xs, lows, highs, color=colour, linewidth=1)
