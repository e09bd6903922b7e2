"""Tables inside documents: text between `<!-- name -->` and `<!-- end -->` comes from the ledger.

<!-- table_groups -->            a table of the paper, with our numbers before the paper's
<!-- runs fig_seeds -->          the places of an experiment: runs, mean, spread, best, time
<!-- lengths tracking_s5 -->     the accuracy of the worst seed at each measured length
<!-- within table_chomsky -->    accuracy at the test length, and over all training lengths
<!-- certificates certified --> what was proved about the runs of each place
<!-- certified models -->        the same for runs that restart until proved, and long random words
<!-- coverage -->                how many of the paper's values we have measured
<!-- verdicts -->                a verdict on each claim of the paper, and what it rests on
<!-- furthest -->                the largest differences from the paper
<!-- language a -->              a panel of the paper's figure on language
<!-- equal minutes -->           small language models after the same minutes of training
<!-- stories -->                 accuracy on stories by number of events
<!-- precision -->               training in float32 and in bfloat16
"""

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from statemix.files.writing import write_atomically
from statemix.report.gather import Neighbour, Place, result_of
from statemix.report.language import PANELS, LanguageRun
from statemix.report.tables import facts, furthest, grids, markdown, markdown_table
from statemix.report.verdicts import verdicts_table
from statemix.sweep import Entry

__all__ = ["update_document"]

_REGION = re.compile(
    r"<!-- (?P<name>[^\n]+?) -->\n(?:(?!<!-- [^\n]+? -->\n).)*?<!-- end -->(?:\n|\Z)", re.DOTALL
)


def _runs_table(places: list[Place]) -> str:
    """A table with one line per recipe of each place that has been run."""
    rows = []
    for place in places:
        for measured in place.measured:
            choice = measured.choice
            seconds = statistics.median(result_of(e)["cpu_seconds"] for e in measured.entries)
            spread = f" ± {choice.deviation:.3f}" if choice.seeds > 1 else ""
            numbers = (f"{choice.mean:.3f}{spread}", f"{choice.best:.3f}", f"{seconds:.0f}")
            rows.append((place.row, place.column, measured.recipe, str(choice.seeds), *numbers))
    columns = ("model", "task", "recipe", "runs", "mean ± sd", "best", "median CPU s")
    return markdown_table(columns, rows)


def _lengths_table(places: list[Place]) -> str:
    """A table of the worst seed's accuracy at each length."""
    measured = [
        (place, [by_length for entry in place.best.entries if (by_length := _curve_of(entry))])
        for place in places
        if place.best
    ]
    found = {int(length) for _, curves in measured for curve in curves for length in curve}
    lengths = [str(length) for length in sorted(found)]
    rows = []
    for place, curves in measured:
        if curves:
            worst = (f"{_worst_at(length, curves):.3f}" for length in lengths)
            rows.append((place.row, place.column, str(len(curves)), *worst))
    return markdown_table(("model", "task", "seeds", *lengths), rows)


def _worst_at(length: str, curves: list[dict[str, float]]) -> float:
    """The lowest accuracy measured at a length, or NaN if there is none."""
    return min(
        (curve[length] for curve in curves if not math.isnan(curve.get(length, math.nan))),
        default=math.nan,
    )


def _within_table(places: list[Place], found: list[Neighbour]) -> str:
    """A table of accuracies at the test length, over all training lengths, and in the paper."""
    rows = []
    paper = {
        (each.paper.table, each.paper.row, each.paper.column): each.paper.accuracy for each in found
    }
    for place in places:
        for measured in place.measured:
            found_within = [
                within
                for entry in measured.entries
                if (within := result_of(entry).get("measured", {}).get("within")) is not None
            ]
            if found_within:
                value = paper.get((place.experiment, place.row, place.column), math.nan)
                means = (measured.choice.mean, statistics.mean(found_within), value)
                numbers = (f"{number:.3f}" for number in means)
                seeds = str(measured.choice.seeds)
                rows.append((place.row, place.column, measured.recipe, seeds, *numbers))
    columns = ("model", "task", "recipe", "seeds", "at the longest", "over all lengths", "paper")
    return markdown_table(columns, rows)


def _certificates_table(places: list[Place]) -> str:
    """A table of how many runs of each place were proved right at every length."""
    rows = [
        (place.row, place.column, measured.recipe, *_proved(measured.entries))
        for place in places
        for measured in place.measured
        if any(_asks_for_proof(entry) for entry in measured.entries)
    ]
    columns = ("proved", "blocks kept", "pairs visited", "smallest slack", "restarts", "CPU s")
    return markdown_table(("model", "task", "training", *columns), rows)


def _asks_for_proof(entry: Entry) -> bool:
    """True if a run was to end with a proof, or was proved later."""
    return entry.config.get("certify", False) or "holds" in result_of(entry).get("measured", {})


def _proved(entries: Sequence[Entry]) -> tuple[str, ...]:
    """How many runs were proved, and what their certificates and their training have."""
    found = [_certificate_of(entry) for entry in entries]
    proved = [certificate for certificate in found if certificate]
    slack = min((certificate["slack"] for certificate in proved), default=math.nan)
    seconds = [result_of(entry)["cpu_seconds"] for entry in entries]
    return (
        f"{len(proved)} of {len(entries)}",
        _span([sum(certificate["blocks"]) for certificate in proved]),
        _span([certificate["pairs"] for certificate in proved]),
        f"{slack:.2f}",
        str(sum(result_of(entry).get("restarts", 0) for entry in entries)),
        f"{statistics.median(seconds):.0f} ({_span([round(x) for x in seconds])})",
    )


def _certificate_of(entry: Entry) -> dict[str, Any] | None:
    """The certificate with which a run ended, or that was made of it later, if it holds."""
    found = result_of(entry).get("certificate") or result_of(entry).get("measured", {})
    return found if found.get("holds") else None


def _span(numbers: list[int]) -> str:
    """The smallest and the largest number."""
    if not numbers:
        return "–"
    first, last = f"{min(numbers):,}", f"{max(numbers):,}"
    return first if first == last else f"{first}–{last}"


def _coverage_table(found: list[Neighbour]) -> str:
    return markdown_table(("of the paper's values", ""), [(f, str(n)) for f, n in facts(found)])


def _curve_of(entry: Entry) -> dict[str, float]:
    return result_of(entry).get("measured", {}).get("by_length", {})


def _render(
    name: str,
    places: list[Place],
    found: list[Neighbour],
    language: list[LanguageRun],
    others: Mapping[str, str],
) -> str:
    """Render the text of one region."""
    if name in others:
        return others[name]
    kind, _, experiment = name.rpartition(" ")
    own = [place for place in places if place.experiment == experiment]
    kinds: dict[str, Callable[[], str]] = {
        "runs": lambda: _runs_table(own),
        "lengths": lambda: _lengths_table(own),
        "within": lambda: _within_table(own, found),
        "certificates": lambda: _certificates_table([place for place in own if place.measured]),
    }
    tables = grids(found)
    if kind in kinds and own:
        return kinds[kind]()
    if name in tables:
        return markdown(tables[name])
    if name in PANELS:
        return PANELS[name](language)
    whole: dict[str, Callable[[], str]] = {
        "coverage": lambda: _coverage_table(found),
        "furthest": lambda: furthest(found),
        "verdicts": lambda: verdicts_table(places, language),
    }
    if name in whole:
        return whole[name]()
    known = [
        *tables,
        *PANELS,
        *others,
        *whole,
        "runs <experiment>",
        "lengths <experiment>",
        "within <experiment>",
        "certificates <experiment>",
    ]
    raise ValueError(f"Unknown region {name!r} in a document. Available: {', '.join(known)}.")


def update_document(
    path: Path,
    places: list[Place],
    found: list[Neighbour],
    language: list[LanguageRun],
    others: Mapping[str, str],
) -> None:
    """Render every region of a document again, in place; `others` are regions by name."""

    def replacement(match: re.Match[str]) -> str:
        table = _render(match["name"], places, found, language, others)
        return f"<!-- {match['name']} -->\n{table}<!-- end -->\n"

    text = path.read_text()
    fresh = _REGION.sub(replacement, text)
    if fresh != text:
        write_atomically(path, fresh.encode())
