"""The report as one interactive page, a single file that needs no network.

It opens with the paper's main tables and its figure 1. Readers then choose an experiment and a
task, look up every run, and step through eigenvalues by time.
"""

from importlib import resources
from pathlib import Path
from typing import Any

from statemix.files.writing import write_atomically
from statemix.pages import Figure, make_document, note, section, show_figure
from statemix.report.gather import Measured, Neighbour, Place, result_of
from statemix.report.headline import facts_table, main_tables
from statemix.report.names import EXPERIMENTS, kind_of, plain_column, plain_row, size_of
from statemix.report.spectra import planes_of
from statemix.report.tables import agreement

__all__ = ["write_report_page"]

_FIRST = ("fig_cost", "fig_best")  # the paper's figure 1
_OWN_SECTION = "fig_eigenvalues"  # shown step by step instead
_EXPLORER = """
<div class="controls"><label>experiment <select id="experiment"></select></label>
<label>task <select id="column"></select></label></div>
<div class="controls"><span id="kinds" class="kinds"></span>
<label>m up to <input id="largest" type="range" min="1" step="1"></label>
<output id="largest-text"></output></div>
<div id="plot" class="panel"></div><p id="missing" class="note"></p><table id="cells"></table>
"""
_PLANE = """
<div class="controls"><label>model <select id="plane-model"></select></label>
<label>time <input id="plane-step" type="range" min="0" value="0"></label>
<output id="plane-name"></output></div>
<svg id="plane" viewBox="0 0 320 320" width="320" height="320" role="img"></svg>
<p id="plane-words" class="note"></p>
"""
_READING = (
    "Each number is a mean over seeds, with its standard deviation and the number n of seeds; the "
    "recipe is the one that validates best. The paper's number is the best of fifteen runs, chosen "
    "on the test set; on small screens it is in brackets. Green: within .05 of the paper or above. "
    "Point at a number, or focus it, to see the best seed and the recipe. Most runs here have a "
    "fraction of the paper's training."
)


def write_report_page(
    path: Path, places: list[Place], found: list[Neighbour], figures: list[Figure]
) -> None:
    """Write the page, with `figures` in their order after the paper's figure 1."""
    data = {"places": _explored(places, found), "planes": planes_of(places)}
    script = resources.files("statemix.report").joinpath("explore.js").read_text(encoding="utf-8")
    body = _body(found, figures, bool(data["planes"]))
    document = make_document(
        "statemix: the paper's numbers and ours", body, figures, data, ("plane.js",), script
    )
    write_atomically(path, document.encode())


def _body(found: list[Neighbour], figures: list[Figure], has_planes: bool) -> str:
    first = "".join(show_figure(figure) for figure in figures if figure.name in _FIRST)
    rest = [figure for figure in figures if figure.name not in (*_FIRST, _OWN_SECTION)]
    parts = [
        "<h1>The paper's numbers and ours</h1>",
        f'<p class="lead">{agreement(found)}</p>',
        note(_READING),
        main_tables(found),
        section("Accuracy, operations and block size", first) if first else "",
        section("What the numbers rest on", facts_table(found)),
        section("Every run", note("Choose an experiment and a task.") + _EXPLORER),
        section("Eigenvalues of trained transitions on S5", _PLANE) if has_planes else "",
        section("All figures", "".join(map(show_figure, rest))) if rest else "",
    ]
    return "".join(parts)


def _explored(places: list[Place], found: list[Neighbour]) -> list[dict[str, Any]]:
    """The places of all experiments with their runs, as the script reads them."""
    paper = {(n.paper.table, n.paper.row, n.paper.column): n.paper.accuracy for n in found}
    return [
        {
            "experiment": EXPERIMENTS.get(place.experiment, place.experiment),
            "row": plain_row(place.row),
            "kind": plain_row(kind_of(place.row)),
            "m": size_of(place.row),
            "column": plain_column(place.column),
            "planned": place.planned,
            "paper": paper.get((place.experiment, place.row, place.column)),
            "measured": [_runs_of(measured) for measured in place.measured],
        }
        for place in sorted(places, key=_order)
    ]


def _order(place: Place) -> int:
    """The paper's tables first, then the other experiments in the order of their names' table."""
    names = list(EXPERIMENTS)
    return names.index(place.experiment) if place.experiment in names else len(names)


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
        "best": measured.choice.best,
        "parameters": result_of(measured.chosen)["parameters"],
        "runs": runs,
    }
