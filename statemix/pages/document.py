"""A page as one file: it needs no network, and follows the reader's light or dark colours."""

import html
import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib import resources
from typing import Any

from statemix.pages.chart import Chart, Figure

__all__ = ["make_document", "note", "section", "show_figure"]


def make_document(
    title: str,
    body: str,
    figures: Iterable[Figure],
    data: dict[str, Any],
    scripts: tuple[str, ...] = (),
    own_script: str = "",
) -> str:
    """The page's HTML, with the figures and the data that its scripts draw.

    `scripts` are files of this package; `own_script` is the text of one more.
    """
    charts = {
        f"{figure.name}-{i}": as_data(chart)
        for figure in figures
        for i, chart in enumerate(figure.charts)
    }
    content = json.dumps({"charts": charts, **data}, separators=(",", ":"), sort_keys=True)
    safe = content.replace("</", "<\\/")
    code = "\n".join([*(_read(name) for name in ("chart.js", *scripts)), own_script])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{html.escape(title)}</title><style>{_read('style.css')}</style></head>"
        f'<body><main>{body}</main><div id="tip" role="status"></div>'
        f"<script>const DATA = {safe};\n{code}</script></body></html>\n"
    )


def as_data(chart: Chart) -> dict[str, Any]:
    """A chart as the script reads it, with its description in words."""
    return {**asdict(chart), "alt": chart.alt}


def section(title: str, body: str) -> str:
    """A part of a page with a heading."""
    return f"<section><h2>{html.escape(title)}</h2>{body}</section>"


def note(text: str) -> str:
    """A paragraph of explanation; `text` is plain text."""
    return f'<p class="note">{html.escape(text)}</p>'


def show_figure(figure: Figure) -> str:
    """The place of a figure: its title, its charts, its caption, and its numbers as tables."""
    charts = "".join(
        f'<div class="panel" data-chart="{html.escape(figure.name)}-{i}"></div>'
        for i in range(len(figure.charts))
    )
    return (
        f'<figure id="{html.escape(figure.name)}"><h3>{html.escape(figure.title)}</h3>'
        f'<div class="panels">{charts}</div><figcaption>{html.escape(figure.caption)}</figcaption>'
        "<details><summary>the numbers</summary></details></figure>"
    )


def _read(name: str) -> str:
    return resources.files("statemix.pages").joinpath(name).read_text(encoding="utf-8")
