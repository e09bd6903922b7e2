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
from typing import Any

from statemix.config.lm import LMRunConfig
from statemix.report.tables import markdown_table
from statemix.sweep import Cell, Entry, Ledger, load_places

__all__ = ["LANGUAGE", "PANELS", "LanguageRun", "draw_language", "read_language"]

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


def draw_language(runs: list[LanguageRun], out: Path) -> list[Path]:
    """Draw the three panels side by side, as SVG and PDF; nothing without runs."""
    if not runs:
        return []
    from statemix.report.drawing import blank, save

    figure, (a, b, c) = blank(3, 15, 4.5)
    _draw_sizes(a, runs)
    _draw_widths(b, runs)
    _draw_speeds(c, runs)
    return save(figure, out, "fig_language")


def _draw_sizes(axis: Any, runs: list[LanguageRun]) -> None:
    """Panel a: a curve for each of our layers, and a horizontal line for other mixers."""
    best = _best_of_each(run for run in runs if run.panel == "a")
    for mixer, style in (("bdlru", "-"), ("hlru", "--")):
        points = sorted(
            (run.m, run.perplexity, run.spread)
            for run in best
            if run.mixer == mixer and run.m is not None
        )
        if points:
            m, perplexity, spread = zip(*points, strict=True)
            axis.errorbar(m, perplexity, spread, linestyle=style, capsize=2, label=_KINDS[mixer])
    for i, run in enumerate(run for run in best if run.m is None):
        axis.axhline(run.perplexity, color=f"C{i + 2}", linestyle=":", label=run.label)
    axis.set(xlabel="block size or order m", ylabel="best validation perplexity", xscale="log")
    ticks = sorted({run.m for run in best if run.m is not None})
    axis.set_xticks(ticks, [str(m) for m in ticks])
    axis.minorticks_off()
    if best:
        axis.legend(fontsize=7)


def _draw_widths(axis: Any, runs: list[LanguageRun]) -> None:
    """Panel b: a curve for each m."""
    shown = _with_widths(runs, {run.lr for run in runs if run.panel == "b"})
    for m in sorted({run.m for run in shown if run.m is not None}):
        points = sorted(
            (run.states, run.perplexity) for run in shown if run.m == m and run.states is not None
        )
        axis.plot(*zip(*points, strict=True), label=f"m = {m}")
    axis.set(xlabel="states of a layer", ylabel="validation perplexity", xscale="log")
    if shown:
        axis.legend(fontsize=7)


def _draw_speeds(axis: Any, runs: list[LanguageRun]) -> None:
    """Panel c: a point for each model."""
    for run in _our_best(runs):
        speed = _speed_of(run.name, runs)
        if speed is not None:
            axis.plot(
                speed,
                run.perplexity,
                linestyle="",
                fillstyle="full" if run.mixer == "bdlru" else "none",
                label=run.label,
            )
    axis.set(xlabel="tokens per CPU second", ylabel="best validation perplexity")
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)
