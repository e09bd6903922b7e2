"""The demo's page: a table, learning curves, and eigenvalues on the complex plane.

The page is a single file without scripts, and needs no network.
"""

import html
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from statemix.files.writing import write_atomically

__all__ = ["Panel", "write_page"]

_COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2", "#9c6b4e")
_POINTS = 1500  # at most this many eigenvalues are drawn per spectrum


@dataclass(frozen=True)
class Panel:
    """The data that the page shows for one model."""

    task: str
    label: str
    states: int
    length: int
    accuracy: float
    long_length: int
    long_accuracy: float
    curve: list[tuple[int, float]]
    eigenvalues: np.ndarray = field(repr=False)


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1e23; background: #fff }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem 1rem .3rem 0; text-align: left; border-bottom: 1px solid #ddd }
td { font-variant-numeric: tabular-nums } td.solved { font-weight: 600; color: #1c7a3a }
.spectra { display: flex; flex-wrap: wrap; gap: 1.2rem }
figure { margin: 0; width: 180px } figcaption { font-size: .85rem }
svg { display: block; max-width: 100% }
svg text { font: 12px system-ui, sans-serif; fill: #555 } p.note { color: #555 }
"""


def write_page(path: Path, panels: list[Panel]) -> None:
    """Write the page atomically."""
    sections = "".join(
        _section([panel for panel in panels if panel.task == task])
        for task in dict.fromkeys(panel.task for panel in panels)
    )
    lead = (
        "Each model reads a sequence token by token and must predict, at every step or at the end, "
        "the product of the tokens so far: a permutation, or a position on a cycle. All models "
        "have one recurrent layer. Independent states that only decay (blocks of 1) cannot solve "
        "these tasks, however many there are; a few states that mix can."
    )
    document = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>statemix: what mixing buys</title><style>{_STYLE}</style>"
        f"<h1>What mixing buys that width cannot</h1><p>{lead}</p>{sections}</html>"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, document.encode())


def _section(panels: list[Panel]) -> str:
    """Render one task: table, learning curves and spectra."""
    first = panels[0]
    rows = "".join(
        f"<tr><td>{html.escape(panel.label)}</td><td>{panel.states}</td>"
        f"{_share(panel.accuracy)}{_share(panel.long_accuracy)}</tr>"
        for panel in panels
    )
    columns = (
        "model",
        "states",
        f"accuracy at {first.length} tokens",
        f"at {first.long_length}, never seen in training",
    )
    head = f"<tr>{''.join(f'<th>{column}</th>' for column in columns)}</tr>"
    spectra = "".join(_spectrum(panel) for panel in panels if len(panel.eigenvalues))
    note = (
        "Eigenvalues of the trained transition matrices on new sequences. They are real and never "
        "negative for blocks of 1, can be negative from m = 2 on, and complex from m = 3 on."
    )
    return (
        f"<h2>{html.escape(first.task.capitalize())}</h2><table>{head}{rows}</table>"
        f"{_curves(panels)}<p class=note>{note}</p><div class=spectra>{spectra}</div>"
    )


def _share(accuracy: float) -> str:
    """Render an accuracy as a table cell, marked if the task is solved."""
    return f"<td{' class=solved' if accuracy > 0.999 else ''}>{accuracy:.3f}</td>"


def _curves(panels: list[Panel]) -> str:
    """Plot validation accuracy over training steps, with a label at the end of each line."""
    width, height = 680, 260
    left, right, top, bottom = 40, 230, 10, 30
    last = max((step for panel in panels for step, _ in panel.curve), default=1)

    def y_of(accuracy: float) -> float:
        return top + (1 - accuracy) * (height - top - bottom)

    lines = []
    ends = []
    for colour, panel in zip(_COLOURS, panels, strict=False):
        points = [
            (left + step / last * (width - left - right), y_of(value))
            for step, value in panel.curve
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        lines.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        end = points[-1] if points else (left, height - bottom)
        ends.append((end, colour, f"{panel.label}, {panel.states} states"))
    labels = []
    free = -100.0
    for (x, y), colour, text in sorted(ends, key=lambda end: end[0][1]):
        free = max(free + 15, y)
        labels.append(
            f'<text x="{max(x, width - right) + 8:.0f}" y="{free + 4:.1f}" '
            f'style="fill:{colour}">{html.escape(text)}</text>'
        )
    ticks = "".join(_tick(value, y_of(value), left, width - right) for value in (0, 0.5, 1))
    axis = (
        f'<text x="{left}" y="{height - 8}">validation accuracy over {last} training steps</text>'
    )
    drawn = "".join([ticks, *lines, *labels, axis])
    return f'<svg viewBox="0 0 {width} {height}" width="{width}" role="img">{drawn}</svg>'


def _tick(value: float, y: float, left: float, right: float) -> str:
    """Draw a horizontal grid line with its value."""
    line = f'<line x1="{left}" x2="{right}" y1="{y:.0f}" y2="{y:.0f}" stroke="#eee"/>'
    return f'{line}<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>'


def _spectrum(panel: Panel) -> str:
    """Plot eigenvalues in the unit circle."""
    size = 180
    half = size // 2
    chosen = np.random.default_rng(0).permutation(panel.eigenvalues)[:_POINTS]
    dots = "".join(
        f'<circle cx="{half + 80 * z.real:.1f}" cy="{half - 80 * z.imag:.1f}" r="1.3" '
        'fill="#4269d0" fill-opacity=".35"/>'
        for z in chosen
    )
    circle = f'<circle cx="{half}" cy="{half}" r="80" fill="none" stroke="#bbb"/>'
    axes = f'<path d="M0 {half}H{size}M{half} 0V{size}" stroke="#ddd"/>'
    caption = f"<figcaption>{html.escape(panel.label)}, {panel.states} states</figcaption>"
    plot = f'<svg viewBox="0 0 {size} {size}" width="{size}" role="img">{circle}{axes}{dots}</svg>'
    return f"<figure>{plot}{caption}</figure>"
