"""The figure of throughput, from the results of `statemix bench speed --parts throughput`."""

import json
import re
from pathlib import Path
from typing import Any

from statemix.report.drawing import blank, save

__all__ = ["draw_throughput", "number_of", "tokens_per_second"]

_Line = dict[str, Any]  # a line of the results, as written by `statemix bench`


def draw_throughput(bench: Path, out: Path) -> list[Path]:
    """Draw the three panels, if there are results; the settings of panel a start with "a:"."""
    path = bench / "throughput.jsonl"
    if not path.is_file():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    latest = {(line["setting"], line["entrant"]): line for line in lines}
    panels = {
        panel: [line for line in latest.values() if line["setting"].startswith(f"{panel}:")]
        for panel in "abc"
    }
    figure, (a, b, c) = blank(3, 15, 4.5)
    _draw_curves(a, panels["a"], "m")
    a.set(xlabel="block size m, 128 blocks, 2,048 steps", xscale="log", yscale="log")
    _name_ticks(a, panels["a"], "m")
    _draw_curves(b, panels["b"], "T")
    b.set(xlabel="steps, 768 states", xscale="log", yscale="log")
    _name_ticks(b, panels["b"], "T")
    layers = panels["c"][::-1]
    c.plot(
        [tokens_per_second(line) for line in layers],
        [line["entrant"] for line in layers],
        linestyle="",
    )
    c.set(xlabel="tokens per second of layers with equal parameter counts", xscale="log")
    c.grid(axis="x", alpha=0.3)
    c.tick_params(axis="x", which="both", labelrotation=45)
    return save(figure, out, "fig_throughput")


def _draw_curves(axis: Any, lines: list[_Line], letter: str) -> None:
    """Plot tokens per second against the number called `letter`, with a curve per entrant."""
    for entrant in dict.fromkeys(line["entrant"] for line in lines):
        points = sorted(
            (number_of(letter, line["setting"]), tokens_per_second(line))
            for line in lines
            if line["entrant"] == entrant
        )
        axis.plot(*zip(*points, strict=True), label=entrant)
    axis.set(ylabel="tokens per second, forward and backward, one thread")
    if lines:
        axis.legend(fontsize=7)


def _name_ticks(axis: Any, lines: list[_Line], letter: str) -> None:
    """Place a labelled tick at each measured number."""
    ticks = sorted({number_of(letter, line["setting"]) for line in lines})
    axis.set_xticks(ticks, [f"{value:,}" for value in ticks])
    axis.minorticks_off()


def tokens_per_second(line: _Line) -> float:
    """Tokens of one call, divided by its time."""
    return number_of("B", line["setting"]) * number_of("T", line["setting"]) / line["value"] * 1e3


def number_of(letter: str, setting: str) -> int:
    """The value of `letter` in a setting such as "B = 1, T = 2048"."""
    found = re.search(rf"\b{letter} = (\d+)", setting)
    if found is None:
        raise ValueError(
            f"The setting {setting!r} of a benchmark must contain '{letter} = <number>'."
        )
    return int(found[1])
