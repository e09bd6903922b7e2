"""Figures as SVG and PDF, drawn from the gathered places."""

import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from statemix.analysis.flops import step_cost
from statemix.models import ModelConfig
from statemix.paper import BASELINES, read_values
from statemix.report.drawing import blank, save
from statemix.report.gather import Measured, Place, result_of

__all__ = ["draw_figures"]

_Draw = Callable[[Any, list[Place]], None]
_KINDS = ("BD-LRU", "H-LRU")


def _best_of(places: Iterable[Place]) -> list[tuple[Place, Measured]]:
    """Each place that has been run, with the recipe that represents it."""
    return [(place, place.best) for place in places if place.best is not None]


def _columns(places: list[Place]) -> Iterable[str]:
    return dict.fromkeys(place.column for place in places)


def _rows(places: list[Place]) -> Iterable[str]:
    return dict.fromkeys(place.row for place in places)


def _size_of(row: str) -> int | None:
    """The block size m of a row such as "BD-LRU m4", or None."""
    _, _, size = row.rpartition(" m")
    return int(size) if size.isdigit() else None


def _draw_line(axis: Any, points: Iterable[tuple[int, Measured]], style: str, label: str) -> None:
    """Plot the mean accuracy at each x, with its standard deviation."""
    rows = sorted((x, best.choice.mean, best.choice.deviation) for x, best in points)
    if rows:
        xs, means, deviations = zip(*rows, strict=True)
        axis.errorbar(xs, means, deviations, linestyle=style, capsize=2, label=label)


def _by_size(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against m, with a line for each column and layer."""
    for kind, style in zip(_KINDS, ("-", "--"), strict=True):
        for column in _columns(places):
            own = [p for p in places if p.column == column and p.row.startswith(kind)]
            sizes = ((_size_of(place.row), best) for place, best in _best_of(own))
            points = ((m, best) for m, best in sizes if m is not None)
            _draw_line(axis, points, style, f"{kind}, {column}")
    axis.set(xlabel="block size or order m", ylabel="accuracy", xscale="log")
    ticks = sorted({m for m in (_size_of(place.row) for place in places) if m is not None})
    axis.set_xticks(ticks, [str(m) for m in ticks])
    axis.minorticks_off()


def _by_parameters(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against parameters, with lines for block sizes and points for baselines."""
    styles = {"BD-LRU": "-", "H-LRU": "--", "Conv": ":"} | dict.fromkeys(BASELINES, "")
    for kind, style in styles.items():
        for column in _columns(places):
            own = [p for p in places if p.column == column and p.row.startswith(kind)]
            points = ((result_of(best.chosen)["parameters"], best) for _, best in _best_of(own))
            _draw_line(axis, points, style, f"{kind}, {column}")
    axis.set(xlabel="parameters", ylabel="accuracy", xscale="log")


def _by_states(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against the number of states, which is the second word of the column."""
    for row in _rows(places):
        for task, style in (("compress", "-"), ("copy", "--")):
            own = [p for p in places if p.row == row and p.column.startswith(task)]
            points = sorted(
                (int(place.column.split()[1]), best.choice.mean) for place, best in _best_of(own)
            )
            if points:
                axis.plot(*zip(*points, strict=True), linestyle=style, label=f"{row}, {task}")
    axis.set(xlabel="states", ylabel="accuracy", xscale="log")


def _by_examples(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against the number of training sequences, the second word of the column."""
    for group, style in (("S3", "-"), ("S4", "--")):
        for row in _rows(places):
            own = [p for p in places if p.row == row and p.column.startswith(group)]
            points = ((int(place.column.split()[1]), best) for place, best in _best_of(own))
            _draw_line(axis, points, style, f"{row}, {group}")
    axis.set(xlabel="training sequences", ylabel="accuracy", xscale="log")


def _by_length(axis: Any, places: list[Place]) -> None:
    """Plot the median accuracy over seeds against the length of the test sequences."""
    for place, best in _best_of(places):
        results = [result_of(entry) for entry in best.entries]
        curves = [result["measured"]["by_length"] for result in results if "measured" in result]
        lengths = sorted({int(length) for curve in curves for length in curve})
        middle = [
            sorted(curve[str(length)] for curve in curves)[len(curves) // 2] for length in lengths
        ]
        if lengths:
            axis.plot(lengths, middle, label=f"{place.row}, {place.column}")
    axis.set(xlabel="length of test sequences", ylabel="accuracy", xscale="log")


def _by_seed(axis: Any, places: list[Place]) -> None:
    """Plot a dot for each run."""
    names = []
    for place in places:
        for measured in place.measured:
            names.append(f"{place.row}\n{place.column}")
            values = [result_of(entry)["test"]["token"] for entry in measured.entries]
            axis.plot([len(names) - 1] * len(values), values, "o", alpha=0.5, color="C0")
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axis.set(ylabel="accuracy of each seed")


def _by_cost(axis: Any, places: list[Place]) -> None:
    """Plot each row's mean accuracy against its mean FLOPs per step, by formula and counted."""
    columns = {value.column for value in read_values() if value.table == places[0].experiment}
    columns.discard("overall")
    for row in _rows(places):
        found = [best for p, best in _best_of(places) if p.row == row and p.column in columns]
        if len(found) == len(columns):
            costs = [step_cost(ModelConfig(**best.chosen.config["model"])) for best in found]
            accuracy = statistics.mean(best.choice.mean for best in found)
            formula = statistics.mean(cost.formula for cost in costs)
            counted = statistics.mean(cost.counted for cost in costs)
            (mark,) = axis.plot(formula, accuracy, linestyle="", label=row)
            axis.plot(
                [formula, counted],
                [accuracy, accuracy],
                marker="",
                linewidth=1,
                alpha=0.6,
                color=mark.get_color(),
            )
    axis.set(
        xlabel="FLOPs per recurrent step by the paper's formulas; lines end at the counted FLOPs",
        ylabel="mean accuracy",
        xscale="log",
    )


def _on_the_plane(axis: Any, places: list[Place]) -> None:
    """Plot all stored eigenvalues on the complex plane, by row."""
    for place, best in _best_of(places):
        measured = result_of(best.chosen).get("measured")
        if measured:
            points = [z for step in measured["eigenvalues"] for z in step]
            axis.plot(
                *zip(*points, strict=True),
                linestyle="",
                markersize=3,
                alpha=0.5,
                markeredgewidth=0,
                label=place.row,
            )
    limits = (-1.05, 1.05)
    axis.set(xlabel="real part", ylabel="imaginary part", xlim=limits, ylim=limits, aspect="equal")


def _where(wanted: Callable[[Place], bool], draw: _Draw) -> _Draw:
    """Restrict a figure to the wanted places."""
    return lambda axis, places: draw(axis, [place for place in places if wanted(place)])


# The name of each figure, the experiment that it is drawn from, and the function that draws it.
_FIGURES: dict[str, tuple[str, _Draw]] = {
    "fig_normalisation": (
        "fig_normalisation",
        _where(lambda place: "AdamW" not in place.column, _by_size),
    ),
    "fig_normalisation_adamw": (
        "fig_normalisation",
        _where(lambda place: "AdamW" in place.column, _by_size),
    ),
    "fig_selectivity": ("fig_selectivity", _by_size),
    "fig_selectivity_parameters": ("fig_selectivity", _by_parameters),
    "fig_mad": ("table_mad", _by_size),
    "fig_groups": ("table_groups", _by_size),
    "fig_chomsky": (
        "table_chomsky",
        _where(lambda place: "length" not in place.column, _by_size),
    ),
    "fig_scaling": ("fig_scaling", _by_states),
    "fig_sample_efficiency": ("fig_sample_efficiency", _by_examples),
    "fig_length": ("fig_length", _by_length),
    "fig_depth": ("fig_depth", _by_length),
    "fig_tracking_length": ("tracking_s5", _by_length),
    "fig_tracking_seeds": ("tracking_s5", _by_seed),
    "fig_seeds": ("fig_seeds", _by_seed),
    "fig_signed_gates": ("signed_gates", _by_seed),
    "fig_tradeoff": ("table_groups", _by_cost),
    "fig_tradeoff_mad": ("table_mad", _by_cost),
    "fig_eigenvalues": ("fig_eigenvalues", _on_the_plane),
}


def draw_figures(places: list[Place], out: Path) -> list[Path]:
    """Write each figure that has a measured place as SVG and PDF, and return the paths."""
    written = []
    for name, (experiment, draw) in _FIGURES.items():
        own = [place for place in places if place.experiment == experiment and place.measured]
        if not own:
            continue
        figure, (axis,) = blank(1, 8, 5)
        draw(axis, own)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(
                fontsize=7,
                loc="center left",
                bbox_to_anchor=(1, 0.5),
                markerscale=1 if name != "fig_eigenvalues" else 3,
            )
        axis.set_title(name.removeprefix("fig_").replace("_", " "), loc="left")
        written += save(figure, out, name)
    return written
