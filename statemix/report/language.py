"""The paper's three panels on language, from the runs of experiments/lm_small.py.

a   the best perplexity by block size or order m, over learning rates, beside other mixers of the same size
b   perplexity against the number of states, for each m
c   perplexity and time of H-LRUs and BD-LRUs of the same number of parameters

Tokens a second are of CPU time, start and validation included, so that runs side by side do not slow each other down on paper.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

KINDS = {
    "bdlru": "BD-LRU",
    "hlru": "H-LRU",
    "lstm": "LSTM",
    "mamba2": "Mamba-2",
    "deltanet": "DeltaNet",
}
FIELDS = ("panels", "name", "config", "result", "cpu_seconds")
SAME = (
    "data",
    "steps",
    "batch",
    "length",
    "optimiser",
)  # what runs that are compared have in common


@dataclass(frozen=True)
class LanguageRun:
    """A model at a learning rate: a line of results/lm/small.jsonl, or the mean of several that differ in their seed."""

    panels: tuple[str, ...]
    name: str
    mixer: str
    m: int | None
    states: int | None
    parameters: int
    lr: float
    perplexity: float
    bits_per_byte: float
    tokens_per_cpu_second: (
        float | None
    )  # None of a run that was interrupted, whose time is not known
    seeds: int = 1
    spread: float = 0.0  # standard deviation of perplexity over seeds

    @property
    def shown(self) -> str:
        """Perplexity, and if there is more than one seed their spread and number."""
        return f"{self.perplexity:.2f}" + (
            f" ± {self.spread:.2f} [{self.seeds}]" if self.seeds > 1 else ""
        )

    @property
    def label(self) -> str:
        kind = KINDS.get(self.mixer, self.mixer)
        return kind if self.m is None else f"{kind} m{self.m}"


def read_language(path: Path) -> list[LanguageRun]:
    """All runs that are written down, seeds averaged; none if there is no such file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    runs = [parse(line, f"{path}, line {number}") for number, line in enumerate(lines, start=1)]
    for name in SAME:
        found = {line["config"][name] for line in lines}
        if len(found) > 1:
            raise ValueError(
                f"The runs of {path} cannot be compared: their `{name}` is {', '.join(map(str, sorted(found)))}. Keep one."
            )
    groups: dict[tuple[str, float], list[LanguageRun]] = defaultdict(list)
    for run in runs:
        groups[run.name, run.lr].append(run)
    return [mean_of(group) for group in groups.values()]


def mean_of(runs: list[LanguageRun]) -> LanguageRun:
    """Of runs that differ in their seed."""
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


def parse(line: dict[str, Any], place: str) -> LanguageRun:
    missing = [name for name in FIELDS if name not in line]
    if missing:
        raise ValueError(
            f"{place} lacks {', '.join(missing)}: is it a run of experiments/lm_small.py?"
        )
    model, result = line["config"]["model"], line["result"]
    m = model["options"].get("block_size", model["options"].get("order"))
    heads = model["options"].get("n_blocks", model["options"].get("n_channels"))
    return LanguageRun(
        panels=tuple(line["panels"]),
        name=line["name"],
        mixer=model["mixer"],
        m=m,
        states=None if m is None else m * heads,
        parameters=result["parameters"],
        lr=line["config"]["lr"],
        perplexity=result["perplexity"],
        bits_per_byte=result["bits_per_byte"],
        tokens_per_cpu_second=None
        if line["cpu_seconds"] is None
        else result["tokens"] / line["cpu_seconds"],
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
    rates = sorted({run.lr for run in runs if "a" in run.panels})
    names = [
        "model",
        "parameters",
        *(f"lr {lr:g}" for lr in rates),
        "best perplexity",
        "bits per byte",
    ]
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    for best in best_of_each(run for run in runs if "a" in run.panels):
        at = {run.lr: f"{run.perplexity:.2f}" for run in runs if run.name == best.name}
        numbers = [*(at.get(lr, "·") for lr in rates), best.shown, f"{best.bits_per_byte:.3f}"]
        lines.append(f"| {best.label} | {best.parameters:,} | {' | '.join(numbers)} |")
    return "\n".join(lines) + "\n"


def panel_b(runs: list[LanguageRun]) -> str:
    """Perplexity by m, against states: half, once and twice the blocks, at one learning rate."""
    rates = {run.lr for run in runs if "b" in run.panels}
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
    for best in best_of_each(run for run in runs if "c" in run.panels):
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
    best = best_of_each(run for run in runs if "a" in run.panels)
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
    shown = with_widths(runs, {run.lr for run in runs if "b" in run.panels})
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
    for run in best_of_each(run for run in runs if "c" in run.panels):
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
