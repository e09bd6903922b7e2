"""The paper's three panels on language, from the ledger and the cells of experiments/lm_small.py.

a   the best perplexity over learning rates, by block size or order m, and of other mixers
b   perplexity against the number of states, for each m
c   perplexity and speed of BD-LRU and H-LRU

All models of panels a and c have about the same number of parameters. Speeds are tokens per second
of CPU time, including start and validation, because runs that share a machine slow each other down
in wall-clock time.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from statemix.config.lm import LMRunConfig
from statemix.pages import Axis, Chart, Figure, Point, Series
from statemix.report.tables import markdown_table
from statemix.sweep import Cell, Entry, Ledger, load_places

__all__ = ["LANGUAGE", "PANELS", "LanguageRun", "language_figure", "read_language"]

LANGUAGE = "lm_small.py"  # the experiment
_KINDS = {
    "bdlru": "BD-LRU",
    "hlru": "H-LRU",
    "lstm": "LSTM",
    "mamba2": "Mamba-2",
    "deltanet": "DeltaNet",
}


@dataclass(frozen=True)
class LanguageRun:
    """A model at a learning rate, averaged over seeds."""

    panel: str
    name: str
    mixer: str
    m: int | None
    states: int | None
    parameters: int
    lr: float
    perplexity: float
    bits_per_byte: float
    tokens_per_cpu_second: float | None  # None if all runs were interrupted
    seeds: int = 1
    spread: float = 0.0  # standard deviation of perplexity over seeds

    @property
    def shown(self) -> str:
        """Perplexity; with several seeds, also their spread and number."""
        spread = f" ± {self.spread:.2f} [{self.seeds}]" if self.seeds > 1 else ""
        return f"{self.perplexity:.2f}{spread}"

    @property
    def label(self) -> str:
        kind = _KINDS.get(self.mixer, self.mixer)
        return kind if self.m is None else f"{kind} m{self.m}"


def read_language(experiment: Path, ledger: Path) -> list[LanguageRun]:
    """The finished runs of the experiment, averaged over seeds; none without the experiment."""
    if not experiment.is_file():
        return []
    done = {entry.id: entry for entry in Ledger(ledger).read()[0] if entry.status == "done"}
    groups: dict[tuple[str, float], list[LanguageRun]] = defaultdict(list)
    for cell in load_places(experiment):
        if cell.config.id in done:
            groups[cell.row, cell.config.lr].append(_measured(cell, done[cell.config.id]))
    return [_mean_of(group) for group in groups.values()]


def _mean_of(runs: list[LanguageRun]) -> LanguageRun:
    """The mean over runs that differ in their seed."""
    speeds = [run.tokens_per_cpu_second for run in runs if run.tokens_per_cpu_second is not None]
    perplexities = [run.perplexity for run in runs]
    return replace(
        runs[0],
        perplexity=statistics.mean(perplexities),
        spread=statistics.stdev(perplexities) if len(runs) > 1 else 0.0,
        seeds=len(runs),
        bits_per_byte=statistics.mean(run.bits_per_byte for run in runs),
        tokens_per_cpu_second=statistics.median(speeds) if speeds else None,
    )


def _measured(cell: Cell, entry: Entry) -> LanguageRun:
    """What the ledger says about a cell."""
    result = entry.result
    assert isinstance(cell.config, LMRunConfig)
    assert result is not None
    model = cell.config.model
    m = model.options.get("block_size", model.options.get("order"))
    heads = model.options.get("n_blocks", model.options.get("n_channels"))
    seconds = result["cpu_seconds"]
    return LanguageRun(
        panel=cell.column,
        name=cell.row,
        mixer=model.mixer,
        m=m,
        states=None if m is None else m * heads,
        parameters=result["parameters"],
        lr=cell.config.lr,
        perplexity=result["perplexity"],
        bits_per_byte=result["bits_per_byte"],
        tokens_per_cpu_second=None if seconds is None else result["tokens"] / seconds,
    )


def _best_of_each(runs: Iterable[LanguageRun]) -> list[LanguageRun]:
    """Each model at the learning rate where its perplexity is lowest."""
    by_name: dict[str, list[LanguageRun]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    return [min(tried, key=lambda run: run.perplexity) for tried in by_name.values()]


def _speed_of(name: str, runs: list[LanguageRun]) -> float | None:
    """Tokens per CPU second of a model: the median over its learning rates."""
    speeds = [
        run.tokens_per_cpu_second
        for run in runs
        if run.name == name and run.tokens_per_cpu_second is not None
    ]
    return statistics.median(speeds) if speeds else None


def _panel_a(runs: list[LanguageRun]) -> str:
    """Perplexity of each model by learning rate; the best with ± deviation and [seeds]."""
    rates = sorted({run.lr for run in runs if run.panel == "a"})
    columns = ("model", "parameters", *(f"lr {lr:g}" for lr in rates))
    rows = []
    for best in _best_of_each(run for run in runs if run.panel == "a"):
        at = {run.lr: f"{run.perplexity:.2f}" for run in runs if run.name == best.name}
        numbers = [*(at.get(lr, "·") for lr in rates), best.shown, f"{best.bits_per_byte:.3f}"]
        rows.append((best.label, f"{best.parameters:,}", *numbers))
    return markdown_table((*columns, "best perplexity", "bits per byte"), rows)


def _panel_b(runs: list[LanguageRun]) -> str:
    """Perplexity by m and number of states, at one learning rate."""
    rates = {run.lr for run in runs if run.panel == "b"}
    shown = sorted(_with_widths(runs, rates), key=lambda run: (run.m or 0, run.states or 0))
    rows = [(run.label, str(run.states), f"{run.parameters:,}", run.shown) for run in shown]
    return markdown_table(("model", "states", "parameters", "perplexity"), rows)


def _with_widths(runs: list[LanguageRun], rates: set[float]) -> list[LanguageRun]:
    """The runs of panel b, and those of panel a at the same learning rates."""
    return [run for run in runs if run.lr in rates and run.mixer == "bdlru"]


def _panel_c(runs: list[LanguageRun]) -> str:
    """Speed and perplexity."""
    rows = []
    for best in _our_best(runs):
        speed = _speed_of(best.name, runs)
        shown = "·" if speed is None else f"{speed:,.0f}"
        rows.append((best.label, f"{best.parameters:,}", shown, best.shown))
    return markdown_table(("model", "parameters", "tokens per CPU second", "best perplexity"), rows)


def _our_best(runs: list[LanguageRun]) -> list[LanguageRun]:
    """The BD-LRUs and H-LRUs of panel a, each at its best learning rate."""
    ours = (run for run in runs if run.panel == "a" and run.mixer in ("bdlru", "hlru"))
    return _best_of_each(ours)


PANELS: dict[str, Callable[[list[LanguageRun]], str]] = {
    "language a": _panel_a,
    "language b": _panel_b,
    "language c": _panel_c,
}


def language_figure(runs: list[LanguageRun]) -> Figure | None:
    """The three panels as charts; nothing without runs."""
    if not runs:
        return None
    seeds = sorted({run.seeds for run in runs})
    span = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    n = f"n = {span} {'seed' if seeds[-1] == 1 else 'seeds'} for each mean"
    parameters = sorted(run.parameters for run in runs if run.panel == "a")
    millions = f"{parameters[0] / 1e6:.2g} to {parameters[-1] / 1e6:.2g}" if parameters else "two"
    return Figure(
        "fig_language",
        "Language models (the paper's figure on FineWeb)",
        f"Models of {millions} million parameters (the paper's have 140 to 210 million), trained "
        "on CPUs on a small corpus. Left: the best of several learning rates. Middle: BD-LRU "
        f"of several widths at one rate. Right: perplexity beside speed. {n}; "
        "bars: ± one standard deviation.",
        (_sizes_chart(runs), _widths_chart(runs), _speeds_chart(runs)),
    )


_PERPLEXITY = Axis("validation perplexity")


def _point(x: float, run: LanguageRun, words: str = "") -> Point:
    """The mean with its deviation, and the learning rate."""
    said = f"n = {run.seeds}, lr {run.lr:g}" + (f"; {words}" if words else "")
    if run.seeds == 1:
        return Point(x, run.perplexity, words=said)
    return Point(x, run.perplexity, run.perplexity - run.spread, run.perplexity + run.spread, said)


def _sizes_chart(runs: list[LanguageRun]) -> Chart:
    """Panel a: a line for each of our layers by m, and a point for each other mixer."""
    best = _best_of_each(run for run in runs if run.panel == "a")
    sizes = sorted({run.m for run in best if run.m is not None})
    others = [run for run in best if run.m is None]
    series = []
    for mixer in ("bdlru", "hlru"):
        own = sorted((run for run in best if run.mixer == mixer), key=lambda run: run.m or 0)
        points = tuple(_point(sizes.index(run.m), run) for run in own if run.m is not None)
        if points:
            series.append(Series(_KINDS[mixer], points))
    series += [
        Series(run.label, (_point(len(sizes) + i, run),), line=False)
        for i, run in enumerate(others)
    ]
    names = [*(f"m = {m}" for m in sizes), *(run.label for run in others)]
    x = Axis("block size or order m, or another mixer", ticks=tuple(enumerate(names)))
    return Chart("By block size", x, _PERPLEXITY, tuple(series))


def _widths_chart(runs: list[LanguageRun]) -> Chart:
    """Panel b: a line for each m."""
    shown = _with_widths(runs, {run.lr for run in runs if run.panel == "b"})
    series = []
    for m in sorted({run.m for run in shown if run.m is not None}):
        own = sorted((run for run in shown if run.m == m), key=lambda run: run.states or 0)
        points = tuple(_point(run.states, run) for run in own if run.states is not None)
        series.append(Series(f"m = {m}", points))
    ticks = tuple((n, f"{n:,}") for n in sorted({run.states for run in shown if run.states}))
    x = Axis("states of a layer", log=True, ticks=ticks)
    return Chart("By number of states", x, _PERPLEXITY, tuple(series))


def _speeds_chart(runs: list[LanguageRun]) -> Chart:
    """Panel c: a point for each model, on an axis that begins at zero."""
    points: dict[str, list[Point]] = defaultdict(list)
    for run in _our_best(runs):
        speed = _speed_of(run.name, runs)
        if speed is not None:
            points[run.mixer].append(_point(speed, run, run.label))
    fastest = max((point.x for own in points.values() for point in own), default=1.0)
    series = [Series(_KINDS[mixer], tuple(own), line=False) for mixer, own in points.items()]
    x = Axis("tokens per CPU second in training", low=0, high=1.1 * fastest)
    return Chart("By speed", x, _PERPLEXITY, tuple(series))
