"""The report as one interactive page, a single file that needs no network.

Readers choose an experiment, models and block sizes, hover over points, and step through time.
"""

import base64
import html
import json
from importlib import resources
from pathlib import Path
from typing import Any

from statemix.files.writing import write_atomically
from statemix.report.gather import Measured, Neighbour, Place, result_of

__all__ = ["write_report_page"]

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem;
       color: #1b1e23; background: #fff }
.controls { display: flex; flex-wrap: wrap; gap: .6rem 1.4rem; align-items: center; margin: 1rem 0 }
.controls label { white-space: nowrap }
table { border-collapse: collapse }
th, td { padding: .25rem .9rem .25rem 0; text-align: left; border-bottom: 1px solid #ddd }
td { font-variant-numeric: tabular-nums }
td.solved { font-weight: 600; color: #1c7a3a } td.missing { color: #8a8a8a }
svg { display: block; max-width: 100% } svg text { font: 12px system-ui, sans-serif }
.point, .eigenvalue { cursor: pointer }
#legend { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; font-size: .85rem }
#legend svg { display: inline; margin-right: .4rem }
#tip { position: absolute; display: none; background: #1b1e23; color: #fff; padding: .4rem .7rem;
       border-radius: 4px; font-size: .8rem; white-space: pre; pointer-events: none }
p.note { color: #555 } .wide { overflow-x: auto }
"""

_BODY = """
<h1>statemix: the paper's numbers and ours</h1>
<p>{summary}</p>
<p class=note>Dots show the mean over seeds, bars the standard deviation, and dashed rings
the paper's values. The table shows the same means,
and the paper's value in brackets. Hover over a dot or a cell to see every run with its seed,
learning rate, CPU time and commit.</p>
<div class=controls><label>experiment <select id=experiment></select></label>
<label>task <select id=column></select></label>
<span id=kinds></span>
<label>m up to <input id=largest type=range min=1 step=1> <span id=largest-text></span></label>
</div>
<svg id=plot viewBox="0 0 720 410" width=720 role=img aria-label="accuracy by block size"></svg>
<div id=legend></div>
<p id=missing class=note></p><div class=wide><table id=cells></table></div>
<section id=spectra><h2>Eigenvalues of trained transitions on S5</h2>
<div class=controls><label>model <select id=spectrum></select></label>
<label>time <input id=time type=range min=0 max=15 value=0></label><span id=time-text></span></div>
<svg id=plane viewBox="0 0 320 320" width=320 role=img
aria-label="eigenvalues on the complex plane"></svg>
<p id=shares class=note></p></section>
{pictures}
<div id=tip></div>
"""
_PICTURES = {
    "fig_throughput": "Throughput on a CPU",
    "fig_language": "Language models of about two million parameters",
}


def write_report_page(
    path: Path, places: list[Place], neighbours: list[Neighbour], summary: str, drawn: list[Path]
) -> None:
    """Write the page, with the `drawn` figures whose numbers are not in the ledger."""
    paper = {(n.paper.table, n.paper.row, n.paper.column): n.paper.accuracy for n in neighbours}
    data = {
        "places": [
            _as_data(place, paper.get((place.experiment, place.row, place.column)))
            for place in places
        ],
        "spectra": [spectrum for place in places if (spectrum := _spectrum_of(place)) is not None],
    }
    script = resources.files("statemix.report").joinpath("page.js").read_text()
    safe = json.dumps(data, separators=(",", ":"), sort_keys=True).replace("</", "<\\/")
    body = _BODY.format(summary=html.escape(summary), pictures=_pictures(drawn))
    document = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>statemix: report</title>'
        f"<style>{_STYLE}</style>{body}"
        f"<script>const DATA = {safe};\n{script}</script></html>"
    )
    write_atomically(path, document.encode())


def _pictures(drawn: list[Path]) -> str:
    """The drawn figures as embedded images, each under its title."""
    shown = []
    for path in drawn:
        if path.suffix == ".svg" and path.stem in _PICTURES:
            title = _PICTURES[path.stem]
            source = f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"
            shown.append(f'<h2>{title}</h2><img alt="{title}" width="100%" src="{source}">')
    return "\n".join(shown)


def _as_data(place: Place, paper: float | None) -> dict[str, Any]:
    best = place.best
    return {
        "experiment": place.experiment,
        "row": place.row,
        "column": place.column,
        "planned": place.planned,
        "paper": paper,
        "accuracy": None if best is None else best.choice.mean,
        "measured": [_runs_of(measured) for measured in place.measured],
    }


def _runs_of(measured: Measured) -> dict[str, Any]:
    runs = [
        {
            "seed": entry.config["seed"],
            "lr": entry.config["lr"],
            "test": result_of(entry)["test"]["token"],
            "cpu_seconds": result_of(entry)["cpu_seconds"],
            "commit": entry.commit,
        }
        for entry in measured.entries
    ]
    return {
        "recipe": measured.recipe,
        "mean": measured.choice.mean,
        "deviation": measured.choice.deviation,
        "parameters": result_of(measured.chosen)["parameters"],
        "runs": runs,
    }


def _spectrum_of(place: Place) -> dict[str, Any] | None:
    """The eigenvalues that an experiment measured, or None if it measured none."""
    measured = place.best and result_of(place.best.chosen).get("measured", {})
    if not measured or "eigenvalues" not in measured:
        return None
    bos = place.best is not None and place.best.chosen.config["model"]["bos"]
    return {
        "row": place.row,
        "bos": bos,
        "steps": measured["eigenvalues"],
        **{share: measured[share] for share in ("negative", "complex")},
    }
