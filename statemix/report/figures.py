"""Figures as SVG and PDF, drawn from the gathered places."""

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from statemix.analysis.flops import step_cost
from statemix.models import ModelConfig
from statemix.paper import BASELINES, read_values
from statemix.report.drawing import blank, save
from statemix.report.gather import Measured, Place, result_of

__all__ = ["draw_figures", "draw_throughput"]

Draw = Callable[[Any, list[Place]], None]
KINDS = ("BD-LRU", "H-LRU")


def size_of(row: str) -> int | None:
    """The block size m of a row such as "BD-LRU m4", or None."""
    _, _, size = row.rpartition(" m")
    return int(size) if size.isdigit() else None


def mean_and_spread(measured: Measured) -> tuple[float, float]:
    return measured.choice.mean, measured.choice.deviation


def by_size(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against m, with a line for each column and layer."""
    for kind, style in zip(KINDS, ("-", "--"), strict=True):
        for column in dict.fromkeys(place.column for place in places):
            found = [
                (size_of(p.row), p.best)
                for p in places
                if p.column == column and p.row.startswith(kind) and p.best is not None
            ]
            points = sorted(
                (m, *mean_and_spread(best))
                for m, best in found
                if m is not None and best is not None
            )
            if points:
                sizes, means, spreads = zip(*points, strict=True)
                axis.errorbar(
                    sizes, means, spreads, linestyle=style, capsize=2, label=f"{kind}, {column}"
                )
    axis.set(xlabel="block size or order m", ylabel="accuracy", xscale="log")
    ticks = sorted({m for m in (size_of(place.row) for place in places) if m is not None})
    axis.set_xticks(ticks, [str(m) for m in ticks])
    axis.minorticks_off()


def by_parameters(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against parameters, with lines for block sizes and points for baselines."""
    for kind, style in zip(
        (*KINDS, "Conv", *BASELINES), ("-", "--", ":", *[""] * len(BASELINES)), strict=True
    ):
        for column in dict.fromkeys(place.column for place in places):
            found = [
                p.best
                for p in places
                if p.column == column and p.row.startswith(kind) and p.best is not None
            ]
            points = sorted(
                (result_of(best.chosen)["parameters"], *mean_and_spread(best)) for best in found
            )
            if points:
                sizes, means, spreads = zip(*points, strict=True)
                axis.errorbar(
                    sizes, means, spreads, linestyle=style, capsize=2, label=f"{kind}, {column}"
                )
    axis.set(xlabel="parameters", ylabel="accuracy", xscale="log")


def by_states(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against the number of states, which is the second word of the column."""
    for row in dict.fromkeys(place.row for place in places):
        for task, style in (("compress", "-"), ("copy", "--")):
            found = [
                p
                for p in places
                if p.row == row and p.column.startswith(task) and p.best is not None
            ]
            points = sorted(
                (int(p.column.split()[1]), mean_and_spread(p.best)[0])
                for p in found
                if p.best is not None
            )
            if points:
                axis.plot(*zip(*points, strict=True), linestyle=style, label=f"{row}, {task}")
    axis.set(xlabel="states", ylabel="accuracy", xscale="log")


def by_examples(axis: Any, places: list[Place]) -> None:
    """Plot accuracy against the number of training sequences."""
    for group, style in (("S3", "-"), ("S4", "--")):
        for row in dict.fromkeys(place.row for place in places):
            found = [
                p
                for p in places
                if p.row == row and p.column.startswith(group) and p.best is not None
            ]
            points = sorted(
                (int(p.column.split()[1]), *mean_and_spread(p.best))
                for p in found
                if p.best is not None
            )
            if points:
                counts, means, spreads = zip(*points, strict=True)
                axis.errorbar(
                    counts, means, spreads, linestyle=style, capsize=2, label=f"{row}, {group}"
                )
    axis.set(xlabel="training sequences", ylabel="accuracy", xscale="log")


def by_length(axis: Any, places: list[Place]) -> None:
    """Plot the median accuracy over seeds against the length of the test sequences."""
    for place in places:
        if place.best is None:
            continue
        curves = [
            result_of(entry)["measured"]["by_length"]
            for entry in place.best.entries
            if "measured" in result_of(entry)
        ]
        lengths = sorted({int(length) for curve in curves for length in curve})
        middle = [
            sorted(curve[str(length)] for curve in curves)[len(curves) // 2] for length in lengths
        ]
        if lengths:
            axis.plot(lengths, middle, label=f"{place.row}, {place.column}")
    axis.set(xlabel="length of test sequences", ylabel="accuracy", xscale="log")


def by_seed(axis: Any, places: list[Place]) -> None:
    """Plot a dot for each run."""
    names = []
    for place in places:
        for measured in place.measured:
            names.append(f"{place.row}\n{place.column}")
            values = [result_of(entry)["test"]["token"] for entry in measured.entries]
            axis.plot([len(names) - 1] * len(values), values, "o", alpha=0.5, color="C0")
    axis.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7)
    axis.set(ylabel="accuracy of each seed")


def by_cost(axis: Any, places: list[Place]) -> None:
    """Plot each row's mean accuracy against its mean FLOPs per step, by formula and counted."""
    wanted = {value.column for value in read_values() if value.table == places[0].experiment} - {
        "overall"
    }
    for row in dict.fromkeys(place.row for place in places):
        found = [
            place.best
            for place in places
            if place.row == row and place.column in wanted and place.best is not None
        ]
        if len(found) == len(wanted):
            costs = [step_cost(ModelConfig(**best.chosen.config["model"])) for best in found]
            accuracy = statistics.mean(best.accuracy for best in found)
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


def on_the_plane(axis: Any, places: list[Place]) -> None:
    """Plot all stored eigenvalues on the complex plane, by row."""
    for place in places:
        measured = place.best and result_of(place.best.chosen).get("measured")
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
    axis.set(
        xlabel="real part",
        ylabel="imaginary part",
        xlim=(-1.05, 1.05),
        ylim=(-1.05, 1.05),
        aspect="equal",
    )


def where(wanted: Callable[[Place], bool], draw: Draw) -> Draw:
    """Restrict a figure to the wanted places."""
    return lambda axis, places: draw(axis, [place for place in places if wanted(place)])


# The name of each figure, the experiment that it is drawn from, and the function that draws it.
FIGURES: dict[str, tuple[str, Draw]] = {
    "fig_normalisation": (
        "fig_normalisation",
        where(lambda place: "AdamW" not in place.column, by_size),
    ),
    "fig_normalisation_adamw": (
        "fig_normalisation",
        where(lambda place: "AdamW" in place.column, by_size),
    ),
    "fig_selectivity": ("fig_selectivity", by_size),
    "fig_selectivity_parameters": ("fig_selectivity", by_parameters),
    "fig_mad": ("table_mad", by_size),
    "fig_groups": ("table_groups", by_size),
    "fig_chomsky": ("table_chomsky", by_size),
    "fig_scaling": ("fig_scaling", by_states),
    "fig_sample_efficiency": ("fig_sample_efficiency", by_examples),
    "fig_length": ("fig_length", by_length),
    "fig_depth": ("fig_depth", by_length),
    "fig_tracking_length": ("tracking_s5", by_length),
    "fig_tracking_seeds": ("tracking_s5", by_seed),
    "fig_seeds": ("fig_seeds", by_seed),
    "fig_signed_gates": ("signed_gates", by_seed),
    "fig_tradeoff": ("table_groups", by_cost),
    "fig_tradeoff_mad": ("table_mad", by_cost),
    "fig_eigenvalues": ("fig_eigenvalues", on_the_plane),
}


def draw_figures(places: list[Place], out: Path) -> list[Path]:
    """Write each figure that has a measured place as SVG and PDF, and return the paths."""
    written = []
    for name, (experiment, draw) in FIGURES.items():
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


def draw_throughput(bench: Path, out: Path) -> list[Path]:
    """Draw the results of `statemix bench speed --parts throughput`, if there are any."""
    path = bench / "throughput.jsonl"
    if not path.is_file():
        return []
    lines = list(
        {
            (line["setting"], line["entrant"]): line
            for line in map(json.loads, path.read_text().splitlines())
        }.values()
    )  # the last line of each entrant and setting wins
    figure, (a, b, c) = blank(3, 15, 4.5)
    draw_curves(
        a,
        [
            (line["entrant"], number_of("m", line["setting"]), line)
            for line in lines
            if line["setting"].startswith("a:")
        ],
    )
    a.set(xlabel="block size m, 128 blocks, 2,048 steps", xscale="log", yscale="log")
    name_ticks(
        a, [number_of("m", line["setting"]) for line in lines if line["setting"].startswith("a:")]
    )
    draw_curves(
        b,
        [
            (line["entrant"], number_of("T", line["setting"]), line)
            for line in lines
            if line["setting"].startswith("b:")
        ],
    )
    b.set(xlabel="steps, 768 states", xscale="log", yscale="log")
    name_ticks(
        b, [number_of("T", line["setting"]) for line in lines if line["setting"].startswith("b:")]
    )
    layers = [line for line in lines if line["setting"].startswith("c:")][::-1]
    c.plot(
        [tokens_per_second(line) for line in layers],
        [line["entrant"] for line in layers],
        linestyle="",
    )
    c.set(xlabel="tokens per second of layers with equal parameter counts", xscale="log")
    c.grid(axis="x", alpha=0.3)
    c.tick_params(axis="x", which="both", labelrotation=45)
    return save(figure, out, "fig_throughput")


def name_ticks(axis: Any, values: list[int]) -> None:
    """Place a labelled tick at each measured value."""
    ticks = sorted(set(values))
    axis.set_xticks(ticks, [f"{value:,}" for value in ticks])
    axis.minorticks_off()


def draw_curves(axis: Any, points: list[tuple[str, int, dict[str, Any]]]) -> None:
    """Plot tokens per second, with a line for each name."""
    for name in dict.fromkeys(name for name, _, _ in points):
        own = sorted((x, tokens_per_second(line)) for other, x, line in points if other == name)
        axis.plot(*zip(*own, strict=True), label=name)
    axis.set(ylabel="tokens per second, forward and backward, one thread")
    if points:
        axis.legend(fontsize=7)


def tokens_per_second(line: dict[str, Any]) -> float:
    return number_of("B", line["setting"]) * number_of("T", line["setting"]) / line["value"] * 1e3


def number_of(letter: str, setting: str) -> int:
    """The value of `letter` in a setting such as "B = 1, T = 2048"."""
    found = re.search(rf"\b{letter} = (\d+)", setting)
    if found is None:
        raise ValueError(
            f"The setting {setting!r} of a benchmark must contain '{letter} = <number>'."
        )
    return int(found[1])
