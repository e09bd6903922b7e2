"""The paper's three panels on language, from the ledger and the cells of experiments/lm_small.py.

a   the best perplexity over learning rates by block size or order m, beside other mixers of the same size
b   perplexity against the number of states, for each m
c   perplexity and speed of H-LRU and BD-LRU with the same number of parameters

Speeds are tokens per second of CPU time, start and validation included, so that runs side by side
do not slow each other down in the table.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statemix.config.lm import LMRunConfig
from statemix.sweep import Cell, Entry, Ledger, load_places

__all__ = ["LANGUAGE", "PANELS", "LanguageRun", "draw_language", "read_language"]

LANGUAGE = "lm_small.py"  # the experiment
KINDS = {
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
        kind = KINDS.get(self.mixer, self.mixer)
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


def best_of_each(runs: Iterable[LanguageRun]) -> list[LanguageRun]:
    """Each model at the learning rate where its perplexity is lowest."""
    by_name: dict[str, list[LanguageRun]] = defaultdict(list)
    for run in runs:
        by_name[run.name].append(run)
    return [min(tried, key=lambda run: run.perplexity) for tried in by_name.values()]


def speed_of(name: str, runs: list[LanguageRun]) -> float | None:
    """Tokens a CPU second of a model, over its learning rates."""
    speeds = [
        run.tokens_per_cpu_second
        for run in runs
        if run.name == name and run.tokens_per_cpu_second is not None
    ]
    return statistics.median(speeds) if speeds else None


def panel_a(runs: list[LanguageRun]) -> str:
    """A line for each model: its perplexity at each learning rate, and the best, ± the spread over [n] seeds."""
    rates = sorted({run.lr for run in runs if run.panel == "a"})
    names = [
        "model",
        "parameters",
        *(f"lr {lr:g}" for lr in rates),
        "best perplexity",
        "bits per byte",
    ]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for best in best_of_each(run for run in runs if run.panel == "a"):
        at = {run.lr: f"{run.perplexity:.2f}" for run in runs if run.name == best.name}
        numbers = [*(at.get(lr, "·") for lr in rates), best.shown, f"{best.bits_per_byte:.3f}"]
        lines.append(f"| {best.label} | {best.parameters:,} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def panel_b(runs: list[LanguageRun]) -> str:
    """Perplexity by m, against states: half, once and twice the blocks, at one learning rate."""
    rates = {run.lr for run in runs if run.panel == "b"}
    lines = ["| model | states | parameters | perplexity |", "|---|---|---|---|"]
    for run in sorted(with_widths(runs, rates), key=lambda run: (run.m or 0, run.states or 0)):
        lines.append(f"| {run.label} | {run.states} | {run.parameters:,} | {run.shown} |")
    return "\n".join(lines) + "\n"


def with_widths(runs: list[LanguageRun], rates: set[float]) -> list[LanguageRun]:
    """The runs of panel b and, between them, those of panel a at its rate."""
    return [run for run in runs if run.lr in rates and run.mixer == "bdlru"]


def panel_c(runs: list[LanguageRun]) -> str:
    """Time beside perplexity."""
    lines = [
        "| model | parameters | tokens per CPU second | best perplexity |",
        "|---|---|---|---|",
    ]
    for best in best_of_each(
        run for run in runs if run.panel == "a" and run.mixer in ("bdlru", "hlru")
    ):
        speed = speed_of(best.name, runs)
        lines.append(
            f"| {best.label} | {best.parameters:,} | {'·' if speed is None else f'{speed:,.0f}'} | {best.shown} |"
        )
    return "\n".join(lines) + "\n"


PANELS: dict[str, Callable[[list[LanguageRun]], str]] = {
    "language a": panel_a,
    "language b": panel_b,
    "language c": panel_c,
}


def draw_language(runs: list[LanguageRun], out: Path) -> list[Path]:
    """The three panels side by side, as SVG and PDF; nothing if nothing has been run."""
    if not runs:
        return []
    from statemix.report.drawing import blank, save

    figure, (a, b, c) = blank(3, 15, 4.5)
    draw_sizes(a, runs)
    draw_widths(b, runs)
    draw_speeds(c, runs)
    return save(figure, out, "fig_language")


def draw_sizes(axis: Any, runs: list[LanguageRun]) -> None:
    """Panel a: a line for each layer, and a level for each mixer that has no m."""
    best = best_of_each(run for run in runs if run.panel == "a")
    for mixer, style in (("bdlru", "-"), ("hlru", "--")):
        points = sorted(
            (run.m, run.perplexity, run.spread)
            for run in best
            if run.mixer == mixer and run.m is not None
        )
        if points:
            m, perplexity, spread = zip(*points, strict=True)
            axis.errorbar(m, perplexity, spread, linestyle=style, capsize=2, label=KINDS[mixer])
    others = [run for run in best if run.m is None]
    for i, run in enumerate(others):
        axis.axhline(run.perplexity, color=f"C{i + 2}", linestyle=":", label=run.label)
    axis.set(xlabel="block size or order m", ylabel="best validation perplexity", xscale="log")
    ticks = sorted({run.m for run in best if run.m is not None})
    axis.set_xticks(ticks, [str(m) for m in ticks])
    axis.minorticks_off()
    if best:
        axis.legend(fontsize=7)


def draw_widths(axis: Any, runs: list[LanguageRun]) -> None:
    """Panel b: a line for each m."""
    shown = with_widths(runs, {run.lr for run in runs if run.panel == "b"})
    for m in sorted({run.m for run in shown if run.m is not None}):
        points = sorted(
            (run.states, run.perplexity) for run in shown if run.m == m and run.states is not None
        )
        axis.plot(*zip(*points, strict=True), label=f"m = {m}")
    axis.set(xlabel="states of a layer", ylabel="validation perplexity", xscale="log")
    if shown:
        axis.legend(fontsize=7)


def draw_speeds(axis: Any, runs: list[LanguageRun]) -> None:
    """Panel c: a point for each model."""
    for run in best_of_each(
        run for run in runs if run.panel == "a" and run.mixer in ("bdlru", "hlru")
    ):
        speed = speed_of(run.name, runs)
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
