"""Eigenvalues that an experiment measured: as a chart, and step by step for the page."""

from collections.abc import Sequence
from typing import Any

from statemix.pages import Axis, Chart, Point, Series
from statemix.report.gather import Place, result_of
from statemix.report.names import plain_row

__all__ = ["on_the_plane", "planes_of"]

_TICKS = ((-1, "−1"), (0, "0"), (1, "1"))


def on_the_plane(places: Sequence[Place]) -> tuple[Chart, ...]:
    """All stored eigenvalues on the complex plane, a chart for each row."""
    x = Axis("real part", ticks=_TICKS, low=-1.05, high=1.05)
    y = Axis("imaginary part", ticks=_TICKS, low=-1.05, high=1.05)
    return tuple(
        Chart(plain_row(place.row), x, y, (_dots(measured["eigenvalues"]),), square=True)
        for place in places
        if (measured := _measured(place))
    )


def _dots(steps: list[list[list[float]]]) -> Series:
    points = tuple(Point(re, im) for step in steps for re, im in step)
    return Series("eigenvalues", points, line=False)


def planes_of(places: Sequence[Place]) -> list[dict[str, Any]]:
    """The eigenvalues of each model as the page steps through them."""
    planes = []
    for place in places:
        measured = _measured(place)
        if measured and place.best is not None:
            first = 0 if place.best.chosen.config["model"]["bos"] else 1
            names = [_step(t + first) for t in range(len(measured["eigenvalues"]))]
            words = (
                f"{100 * measured['negative']:.1f} % of all eigenvalues are negative, "
                f"{100 * measured['complex']:.1f} % complex."
            )
            steps = list(zip(names, measured["eigenvalues"], strict=True))
            planes.append({"name": plain_row(place.row), "steps": steps, "words": words})
    return planes


def _step(t: int) -> str:
    return "the BOS token" if t == 0 else f"token {t}"


def _measured(place: Place) -> dict[str, Any]:
    """What was measured of the best run, if it includes eigenvalues."""
    found = result_of(place.best.chosen).get("measured", {}) if place.best is not None else {}
    return found if "eigenvalues" in found else {}
