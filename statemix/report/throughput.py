"""The figure of throughput, from the results of `statemix bench speed --parts throughput`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from statemix.config.fields import POSITIVE
from statemix.files.json_files import read_rows
from statemix.pages import Axis, Chart, Figure, Point, Series

__all__ = ["Line", "number_of", "throughput_figure", "tokens_per_second"]

_RATE = Axis("tokens per second, forward and backward", log=True)
_ENTRANTS = {
    "fused": "our C++ kernel",
    "sequential": "plain torch, step by step",
    "parallel": "plain torch, the paper's parallel scan",
    "parallel, compiled": "the parallel scan, torch.compile",
}
_LAYERS = {"bdlru": "BD-LRU", "hlru": "H-LRU", "lstm": "LSTM, torch's kernel"}
_PLAIN = {"mamba2": "Mamba-2", "deltanet": "DeltaNet"}


@dataclass(frozen=True)
class Line:
    """A line of the results, as written by `statemix bench`."""

    setting: str
    entrant: str
    value: Annotated[float, POSITIVE]
    rounds: int
    processor: str
    torch: str


def throughput_figure(bench: Path) -> Figure | None:
    """The three charts, if there are results; the settings of the first start with "a:"."""
    path = bench / "throughput.jsonl"
    if not path.is_file():
        return None
    lines = read_rows(Line, path, "Measure again.")
    if not lines:
        return None
    latest = {(line.setting, line.entrant): line for line in lines}
    panels = {
        panel: [line for line in latest.values() if line.setting.startswith(f"{panel}:")]
        for panel in "abc"
    }
    machine = next(iter(latest.values()))
    return Figure(
        "fig_throughput",
        "Throughput on a CPU (the paper measures a GPU)",
        "Forward and backward pass on one thread. Left: 128 blocks, 2,048 steps. Middle: our "
        "kernel with 768 states. Right: layers with equal numbers of parameters, 2,048 steps; "
        "Mamba-2 and DeltaNet are our versions in plain torch, not their authors' GPU kernels, so "
        f"their speed says nothing about those. Median of {machine.rounds} rounds on "
        f"{machine.processor}, torch {machine.torch}; no spread is known.",
        (
            _curves("Implementations of BD-LRU", panels["a"], "m", "block size m"),
            _curves("Block sizes", panels["b"], "T", "steps"),
            _layers(panels["c"]),
        ),
    )


def _curves(title: str, lines: list[Line], letter: str, label: str) -> Chart:
    """Tokens per second against the number called `letter`, with a curve per entrant."""
    series = []
    for entrant in dict.fromkeys(line.entrant for line in lines):
        points = sorted(
            (number_of(letter, line.setting), tokens_per_second(line))
            for line in lines
            if line.entrant == entrant
        )
        drawn = tuple(Point(x, y) for x, y in points)
        series.append(Series(_ENTRANTS.get(entrant, entrant), drawn))
    ticks = tuple((n, f"{n:,}") for n in sorted({number_of(letter, e.setting) for e in lines}))
    return Chart(title, Axis(label, log=True, ticks=ticks), _RATE, tuple(series))


def _layers(lines: list[Line]) -> Chart:
    """Tokens per second of each layer."""
    names = [_layer(line.entrant) for line in lines]
    points = tuple(Point(i, tokens_per_second(line)) for i, line in enumerate(lines))
    x = Axis("layer", ticks=tuple(enumerate(names)), low=-0.5, high=len(names) - 0.5)
    return Chart("Layers", x, _RATE, (Series("a layer", points, line=False),))


def _layer(entrant: str) -> str:
    kind, _, size = entrant.partition("-m")
    if kind in _PLAIN:
        return f"{_PLAIN[kind]}, plain torch"
    return f"{_LAYERS.get(kind, kind)}, m = {size}" if size else _LAYERS.get(kind, kind)


def tokens_per_second(line: Line) -> float:
    """Tokens of one call, divided by its time."""
    return number_of("B", line.setting) * number_of("T", line.setting) / line.value * 1e3


def number_of(letter: str, setting: str) -> int:
    """The value of `letter` in a setting such as "B = 1, T = 2048"."""
    found = re.search(rf"\b{letter} = (\d+)", setting)
    if found is None:
        raise ValueError(
            f"The setting {setting!r} of a benchmark must contain '{letter} = <number>'."
        )
    return int(found[1])
