"""Matplotlib, set up so that the same numbers give the same files."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "statemix"
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.rcsetup import cycler  # noqa: E402

COLOURS = ["#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#555555"]
MARKERS = ["o", "s", "^", "D", "v"]
matplotlib.rcParams["axes.prop_cycle"] = cycler(marker=MARKERS) * cycler(
    color=COLOURS
)  # forty lines to tell apart


def blank(panels: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and its axes, side by side."""
    figure, axes = plt.subplots(
        1, panels, figsize=(width, height), layout="constrained", squeeze=False
    )
    return figure, list(axes[0])


def save(figure: Any, out: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PDF, without the time at which it was drawn."""
    written = [out / f"{name}.{kind}" for kind in ("svg", "pdf")]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # what has been laid out once need not be for each file
    for path in written:
        figure.savefig(
            path, metadata={"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
        )
    plt.close(figure)
    return written
