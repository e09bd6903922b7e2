"""Tables inside documents: text between `<!-- name -->` and `<!-- end -->` comes from the ledger.

<!-- table_groups -->            a table of the paper, with our numbers before the paper's
<!-- runs fig_seeds -->          the places of an experiment: runs, mean, spread, best, time
<!-- lengths tracking_s5 -->     the accuracy of the worst seed at each measured length
<!-- within table_chomsky -->    accuracy at the test length, and over all training lengths
<!-- coverage -->                how many of the paper's values we have measured
<!-- furthest -->                the largest differences from the paper
<!-- language a -->              a panel of the paper's figure on language
"""

import math
import re
import statistics
from collections.abc import Callable
from pathlib import Path

from statemix.report.gather import Neighbour, Place, result_of
from statemix.report.language import PANELS, LanguageRun
from statemix.report.tables import coverage, furthest, grids, markdown
from statemix.runs.files import write_atomically
from statemix.sweep import Entry

__all__ = ["update_document"]

REGION = re.compile(
    r"<!-- (?P<name>[^\n]+?) -->\n(?:(?!<!-- [^\n]+? -->\n).)*?<!-- end -->(?:\n|\Z)", re.DOTALL
)


def runs_table(places: list[Place]) -> str:
    """A table with one line per recipe of each place that has been run."""
    lines = [
        "| model | task | recipe | runs | mean ± sd | best | median CPU s |",
        "|---|---|---|---|---|---|---|",
    ]
    for place in places:
        for measured in place.measured:
            choice = measured.choice
            seconds = statistics.median(result_of(e)["cpu_seconds"] for e in measured.entries)
            spread = f" ± {choice.deviation:.3f}" if choice.seeds > 1 else ""
            numbers = (
                f"{choice.seeds} | {choice.mean:.3f}{spread} | {choice.best:.3f} | {seconds:.0f}"
            )
            lines.append(
                f"| {cell(place.row)} | {cell(place.column)} | {cell(measured.recipe)} | {numbers} |"
            )
    return "\n".join(lines) + "\n"


def lengths_table(places: list[Place]) -> str:
    """A table of the worst seed's accuracy at each length."""
    rows = [
        (place, [by_length for entry in place.best.entries if (by_length := curve_of(entry))])
        for place in places
        if place.best
    ]
    lengths = sorted({int(length) for _, curves in rows for curve in curves for length in curve})
    lines = [
        f"| model | task | seeds | {' | '.join(map(str, lengths))} |",
        f"|---|---|---|{'---|' * len(lengths)}",
    ]
    for place, curves in rows:
        if curves:
            worst = (worst_at(str(length), curves) for length in lengths)
            lines.append(
                f"| {cell(place.row)} | {cell(place.column)} | {len(curves)} | {' | '.join(f'{value:.3f}' for value in worst)} |"
            )
    return "\n".join(lines) + "\n"


def worst_at(length: str, curves: list[dict[str, float]]) -> float:
    """The lowest accuracy measured at a length, or NaN if there is none."""
    return min(
        (curve[length] for curve in curves if not math.isnan(curve.get(length, math.nan))),
        default=math.nan,
    )


def cell(text: str) -> str:
    """Escape a name for a Markdown table, whose cells end at a bar."""
    return text.replace("|", "\\|")


def within_table(places: list[Place], found: list[Neighbour]) -> str:
    """A table of accuracies at the test length, over all training lengths, and in the paper."""
    lines = [
        "| model | task | recipe | at the longest | over all lengths | paper |",
        "|---|---|---|---|---|---|",
    ]
    paper = {
        (each.paper.table, each.paper.row, each.paper.column): each.paper.accuracy for each in found
    }
    for place in places:
        for measured in place.measured:
            within = result_of(measured.chosen).get("measured", {}).get("within")
            if within is not None:
                value = paper.get((place.experiment, place.row, place.column), float("nan"))
                numbers = f"{measured.accuracy:.3f} | {within:.3f} | {value:.3f}"
                lines.append(f"| {place.row} | {place.column} | {measured.recipe} | {numbers} |")
    return "\n".join(lines) + "\n"


def curve_of(entry: Entry) -> dict[str, float]:
    return result_of(entry).get("measured", {}).get("by_length", {})


def render(
    name: str, places: list[Place], found: list[Neighbour], language: list[LanguageRun]
) -> str:
    """Render the text of one region."""
    kind, _, experiment = name.rpartition(" ")
    own = [place for place in places if place.experiment == experiment]
    kinds: dict[str, Callable[[], str]] = {
        "runs": lambda: runs_table(own),
        "lengths": lambda: lengths_table(own),
        "within": lambda: within_table(own, found),
    }
    tables = grids(found)
    if kind in kinds and own:
        return kinds[kind]()
    if name in tables:
        return markdown(tables[name])
    if name in PANELS:
        return PANELS[name](language)
    if name in ("coverage", "furthest"):
        return furthest(found) if name == "furthest" else coverage(found) + "\n"
    known = [
        *tables,
        *PANELS,
        "coverage",
        "furthest",
        "runs <experiment>",
        "lengths <experiment>",
        "within <experiment>",
    ]
    raise ValueError(f"Unknown region {name!r} in a document. Available: {', '.join(known)}.")


def update_document(
    path: Path, places: list[Place], found: list[Neighbour], language: list[LanguageRun]
) -> None:
    """Render every region of a document again, in place."""
    text = path.read_text()
    fresh = REGION.sub(
        lambda match: (
            f"<!-- {match['name']} -->\n{render(match['name'], places, found, language)}<!-- end -->\n"
        ),
        text,
    )
    if fresh != text:
        write_atomically(path, fresh.encode())
