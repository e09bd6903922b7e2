"""Matplotlib, configured so that the same numbers give the same files."""

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "statemix"
import matplotlib.pyplot as plt  # noqa: E402
from matplotlib.rcsetup import cycler  # noqa: E402

__all__ = ["blank", "save"]

_COLOURS = ["#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e", "#6cc5b0", "#555555"]
_MARKERS = ["o", "s", "^", "D", "v"]
# Forty distinct combinations of marker and colour.
matplotlib.rcParams["axes.prop_cycle"] = cycler(marker=_MARKERS) * cycler(color=_COLOURS)


def blank(panels: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """Create a figure with `panels` axes side by side."""
    figure, axes = plt.subplots(
        1, panels, figsize=(width, height), layout="constrained", squeeze=False
    )
    return figure, list(axes[0])


def save(figure: Any, out: Path, name: str) -> list[Path]:
    """Write a figure as SVG and PDF, without a time stamp, and return the paths."""
    written = [out / f"{name}.{kind}" for kind in ("svg", "pdf")]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the layout is the same for both files
    for path in written:
        figure.savefig(
            path, metadata={"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
        )
    plt.close(figure)
    return written
