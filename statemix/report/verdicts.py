"""A verdict on each claim of the paper, computed from the ledger: a word, a number, and its basis.

Each claim has a rule, so that a verdict changes with the runs and not with its author. `Evidence`
notes which places a rule reads: their seeds, sizes and share of the paper's training are the basis.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from statemix.paper import bdlru, block_sizes, hlru
from statemix.report.evidence import Evidence
from statemix.report.gather import Place, result_of
from statemix.report.language import LanguageRun
from statemix.report.names import plain_column
from statemix.report.tables import markdown_table

__all__ = ["verdicts_table"]

_SOLVED = 0.98
_LEFT = 0.6  # runs on compression and copying that have less are still on their first plateau
_APART = 0.05  # the smallest difference between means that counts
_SECTIONS = {  # of the page, by experiment
    "table_groups": "#permutations",
    "table_mad": "#recall-copying-compression",
    "table_chomsky": "#regular-languages",
    "fig_scaling": "#figures",
    "fig_eigenvalues": "#figures",
    "fig_normalisation": "#figures",
    "fig_selectivity": "#figures",
    "lm_small": "#language",
}
_Verdict = tuple[str, str]  # a word and a sentence


def _highest(values: Sequence[float]) -> float:
    """The largest of the values that are known."""
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _lowest(values: Sequence[float]) -> float:
    return min((value for value in values if not math.isnan(value)), default=math.nan)


def _if(holds: bool, word: str = "confirmed", otherwise: str = "not confirmed") -> str:
    return word if holds else otherwise


def _unless_stalled(best: float, holds: bool) -> str:
    """The verdict, or that it is open because no run has left its first plateau."""
    return _if(holds) if best >= _LEFT else "open: the runs are on their plateau"


def _width(e: Evidence) -> _Verdict:
    states = (16, 32, 64, 128, 256)
    best = {
        m: _highest([e.mean("fig_scaling", bdlru(m), f"copy, {n} states") for n in states])
        for m in (1, 2, 4, 8)
    }
    ahead = _highest([best[2], best[4], best[8]]) - best[1]
    return (
        _unless_stalled(_highest(list(best.values())), ahead > _APART),
        f"On copying with up to 256 states, the best larger block is {ahead:+.2f} from m = 1.",
    )


def _learns_groups(e: Evidence) -> _Verdict:
    needed = {"S3-10k": (2, 3, 4, 5), "S4-50k": (3, 4, 5), "S5-100k": (5, 6, 8)}
    means = {
        f"{plain_column(column)}, m = {m}": e.mean("table_groups", bdlru(m), column)
        for column, sizes in needed.items()
        for m in sizes
    }
    worst = min(means, key=lambda name: means[name])
    failed = [name for name, mean in means.items() if not mean >= _SOLVED]
    word = "confirmed" if not failed else f"confirmed but for {'; '.join(failed)}"
    return (
        _if(len(failed) <= 1, word),
        f"The lowest of these means is {means[worst]:.3f} ({worst}); blocks that "
        "[cannot carry](groups.md) a group exactly fade with length.",
    )


def _easier(e: Evidence) -> _Verdict:
    means = [e.mean("table_groups", bdlru(m), "S5-100k") for m in (1, 2, 3, 4, 5)]
    near = [f"{m} and {m + 1}" for m in (1, 2, 3, 4) if abs(means[m] - means[m - 1]) < _APART]
    word = f"confirmed, but m = {', '.join(near)} are not separated" if near else "confirmed"
    shown = ", ".join(f"{mean:.2f}" for mean in means)
    rises = all(after > before - _APART for before, after in pairwise(means))
    return (
        _if(rises, word),
        f"Accuracy on S5 is {shown} for m = 1 to 5, each at its best recipe.",
    )


def _chomsky(e: Evidence) -> _Verdict:
    columns = ("", ", length 40")
    parity = [e.mean("table_chomsky", bdlru(2), f"parity{c}") for c in columns]
    cycle = [e.mean("table_chomsky", bdlru(4), f"cycle_nav{c}") for c in columns]
    word = _if(_lowest(parity) >= _SOLVED, "confirmed for parity", "parity not confirmed")
    other = _if(_highest(cycle) < 0.8, "and for the walk", "but not for the walk at 40 tokens")
    return (
        f"{word}, {other}",
        f"Blocks of four reach {_highest(cycle):.2f} on walks on a cycle of five, where the paper "
        "has .61; at every length it takes [five](groups.md).",
    )


def _hlru_tracks(e: Evidence) -> _Verdict:
    columns = ("S3-10k", "S4-50k", "S5-100k")
    best = _highest([e.mean("table_groups", hlru(m), c) for m in block_sizes for c in columns])
    return _if(best < 0.8), f"The best H-LRU on S3, S4 and S5 has {best:.2f}."


def _eigenvalues(e: Evidence) -> _Verdict:
    negative = {m: e.share(bdlru(m), "negative") for m in (1, 2)}
    complex_ = {m: e.share(bdlru(m), "complex") for m in (2, 3)}
    holds = negative[1] == 0 < negative[2] and complex_[2] == 0 < complex_[3]
    return (
        _if(holds, "confirmed, and proved for gates that are not negative"),
        f"On S5, {100 * negative[2]:.0f} % are negative at m = 2 and {100 * complex_[3]:.0f} % "
        "complex at m = 3.",
    )


def _normalisation(e: Evidence) -> _Verdict:
    gains = {}
    for name, kind in ((hlru, "H-LRU"), (bdlru, "BD-LRU")):
        sizes = (4, 8, 16)
        with_it = _highest([e.mean("fig_normalisation", name(m), "softmax") for m in sizes])
        without = _highest([e.mean("fig_normalisation", name(m), "none") for m in sizes])
        gains[kind] = with_it - without if with_it >= _LEFT else math.nan
    shown = " and ".join(
        f"nothing for {kind}, whose runs are on their plateau,"
        if math.isnan(gain)
        else f"{gain:+.2f} for {kind}"
        for kind, gain in gains.items()
    )
    word = " and ".join(kind for kind, gain in gains.items() if gain > _APART)
    return (
        f"confirmed for {word}" if word else "not confirmed",
        f"On compression of 16 tokens at m ≥ 4, softmax adds {shown} to the best run without it.",
    )


def _parameters(e: Evidence) -> _Verdict:
    smallest = {}
    for kind in ("BD-LRU", "H-LRU", "LSTM", "Mamba2"):
        found = [
            (result_of(place.best.chosen)["parameters"], place.best, column)
            for (experiment, row, column), place in e.places.items()
            if experiment == "fig_selectivity" and row.startswith(kind) and place.best is not None
            if place.best.choice.mean >= 0.9
        ]
        if found:
            smallest[kind], measured, column = min(found, key=lambda each: each[0])
            e.used.append((column, measured))
    shown = ", ".join(f"{kind} {count:,}" for kind, count in smallest.items())
    first = min(smallest, key=lambda kind: smallest[kind], default="")
    return (
        _if(first == "H-LRU", "confirmed at 8 tokens", "not confirmed"),
        f"The fewest parameters that compress 8 tokens with .9: {shown}.",
    )


def _selectivity(e: Evidence) -> _Verdict:
    def loss(name: Callable[[int], str]) -> float:
        gaps = [
            e.mean("fig_selectivity", name(m), "full") - e.mean("fig_selectivity", name(m), "none")
            for m in (1, 2, 4, 8, 16)
        ]
        return statistics.mean(gap for gap in gaps if not math.isnan(gap)) if gaps else math.nan

    blocks, orders = loss(bdlru), loss(hlru)
    return (
        _if(blocks > orders and blocks > _APART),
        f"On compression of 8 tokens, gates that ignore the input cost {blocks:.2f} for BD-LRU and "
        f"{orders:.2f} for H-LRU, on average over m.",
    )


def _recall(e: Evidence) -> _Verdict:
    one, two = e.alike("table_mad", (bdlru(1), bdlru(2)), "recall").values()
    return (
        _if(two - one > _APART and two > _SOLVED),
        f"Recall is {two:.3f} at m = 2 and {one:.3f} at m = 1.",
    )


def _copying(e: Evidence) -> _Verdict:
    one, *larger = e.alike("table_mad", [bdlru(m) for m in (1, 2, 4, 8)], "copy").values()
    gap = _highest(larger) - one
    return (
        _unless_stalled(_highest(larger), gap > _APART),
        f"With one recipe, the best of m = 2, 4 and 8 copies {gap:+.2f} better than m = 1.",
    )


def _compression(e: Evidence) -> _Verdict:
    sizes = (1, 2, 4, 8, 16)
    found = e.alike("table_mad", [bdlru(m) for m in sizes], "compress")
    means = dict(zip(sizes, found.values(), strict=True))
    best = max(sizes, key=lambda m: -1.0 if math.isnan(means[m]) else means[m])
    ahead = means[best] - means[1]
    return (
        _unless_stalled(means[best], best in (2, 4, 8) and ahead > _APART),
        f"With one recipe, m = {best} compresses best, with {means[best]:.3f}; m = 1 has "
        f"{means[1]:.3f}.",
    )


def _samples(e: Evidence) -> _Verdict:
    blocks = e.mean("table_groups", bdlru(3), "S3-250")
    lstm = e.mean("table_groups", "LSTM", "S3-250")
    word = "confirmed" if lstm < blocks - _APART else "confirmed for BD-LRU, not against the LSTM"
    return (
        _if(blocks >= _SOLVED, word),
        f"From 250 sequences of S3, m = 3 has {blocks:.3f}, and the LSTM {lstm:.3f} at its best "
        "rate.",
    )


def _language(e: Evidence) -> _Verdict:
    by_m: dict[int, LanguageRun] = {}
    for run in e.language:
        if run.panel == "a" and run.mixer == "bdlru" and run.m is not None:
            best = by_m.get(run.m)
            by_m[run.m] = run if best is None or run.perplexity < best.perplexity else best
    if len(by_m) < 2:
        return "not run", "No language models were trained."
    m = min(by_m, key=lambda size: by_m[size].perplexity)
    return (
        _if(1 < m < max(by_m)),
        f"Perplexity ± deviation [seeds] is lowest at m = {m}, {by_m[m].shown}; it is "
        f"{by_m[1].shown} at m = 1, with {by_m[m].parameters / 1e6:.1f} million parameters (the "
        "paper: 210).",
    )


_CLAIMS: tuple[tuple[str, Callable[[Evidence], _Verdict], str], ...] = (
    ("width cannot replace mixing", _width, "fig_scaling"),
    ("BD-LRU learns S3, S4, S5 from m = 2, 3, 5 on", _learns_groups, "table_groups"),
    ("S5 becomes easier with m", _easier, "table_groups"),
    ("BD-LRU learns permutations from few samples", _samples, "table_groups"),
    ("H-LRU does not track states", _hlru_tracks, "table_groups"),
    ("parity needs m ≥ 2, a walk on a cycle of five m ≥ 5", _chomsky, "table_chomsky"),
    ("eigenvalues are negative from m = 2 on, complex from m = 3", _eigenvalues, "fig_eigenvalues"),
    ("recall needs mixing", _recall, "table_mad"),
    ("copying needs mixing", _copying, "table_mad"),
    ("moderate blocks compress best", _compression, "table_mad"),
    ("normalisation lets m scale", _normalisation, "fig_normalisation"),
    ("selectivity matters, less so for H-LRU", _selectivity, "fig_selectivity"),
    ("H-LRU is the most parameter-efficient compressor", _parameters, "fig_selectivity"),
    ("in language a moderate m is best", _language, "lm_small"),
)


def verdicts_table(places: Sequence[Place], language: Sequence[LanguageRun]) -> str:
    """A table of claims with their verdicts, one sentence each, and what these rest on."""
    by_place = {(place.experiment, place.row, place.column): place for place in places}
    rows = []
    for claim, judge, experiment in _CLAIMS:
        evidence = Evidence(by_place, language)
        word, sentence = judge(evidence) if _is_run(by_place, language, experiment) else ("–", "–")
        if "nan" in sentence:
            word, sentence = "open", "Some of its cells have not been run."
        basis = f"{evidence.basis()} ([table]({_SECTIONS[experiment]}))"
        rows.append((claim, f"**{word}**{_caution(evidence)}", sentence, basis))
    return markdown_table(("claim", "verdict", "here", "rests on"), rows)


def _caution(evidence: Evidence) -> str:
    """A warning if a verdict rests on single seeds."""
    if not evidence.used or evidence.seeds[0] > 1:
        return ""
    return ", on one seed" if evidence.seeds[-1] == 1 else ", partly on one seed"


def _is_run(
    by_place: dict[tuple[str, str, str], Place], language: Sequence[LanguageRun], experiment: str
) -> bool:
    """True if any cell of the experiment has been run."""
    if experiment == "lm_small":
        return bool(language)
    return any(place.measured for (name, _, _), place in by_place.items() if name == experiment)
