"""The comparison of small language models after equal minutes of training.

A model is shown by its longest runs; of trials, that of the best learning rate is shown.
"""

import statistics
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated

from statemix.config.fields import POSITIVE
from statemix.config.lm import LMRunConfig
from statemix.files.json_files import read_rows
from statemix.report.tables import markdown_table
from statemix.sweep import Cell, Entry, Ledger, load_scales

__all__ = ["MINUTES", "minutes_table"]

MINUTES = "equal_minutes.py"
_COLUMNS = (
    "model",
    "parameters",
    "tokens/s in training",
    "in decoding",
    "CPU minutes",
    "million tokens seen",
    "learning rate",
    "runs",
    "bits per byte ± sd",
)


@dataclass(frozen=True)
class _Line:
    """A line of the file of timings."""

    model: str
    parameters: int
    step_seconds: Annotated[float, POSITIVE]
    step_tokens: int
    decoding_seconds: Annotated[float, POSITIVE]


@dataclass(frozen=True)
class _Timing:
    """Speeds of a model on one thread."""

    parameters: int
    training: float
    decoding: float


def minutes_table(experiment: Path, ledger: Path) -> str:
    """A table with one line per model that was timed; those that were not trained have dashes."""
    timings = _read_timings(ledger.parent / "bench" / f"{experiment.stem}.jsonl")
    done = {entry.id: entry for entry in Ledger(ledger).read()[0] if entry.status == "done"}
    groups: dict[str, dict[tuple[float, float], list[tuple[Cell, Entry]]]] = defaultdict(dict)
    for cell in chain.from_iterable(load_scales(experiment).values()):
        if cell.config.id in done:
            setting = (float(cell.column.split()[0]), cell.config.lr)
            groups[cell.row].setdefault(setting, []).append((cell, done[cell.config.id]))
    rows = [(name, *_speeds(own), *_quality(groups[name])) for name, own in timings.items()]
    return markdown_table(_COLUMNS, rows)


def _read_timings(path: Path) -> dict[str, _Timing]:
    return {
        line.model: _Timing(
            line.parameters, line.step_tokens / line.step_seconds, 1 / line.decoding_seconds
        )
        for line in read_rows(_Line, path, "Run the experiment again.")
    }


def _speeds(timing: _Timing) -> tuple[str, str, str]:
    return f"{timing.parameters:,}", f"{timing.training:,.0f}", f"{timing.decoding:,.0f}"


def _quality(settings: dict[tuple[float, float], list[tuple[Cell, Entry]]]) -> tuple[str, ...]:
    """Minutes, tokens, rate, number of runs and bits per byte of the longest and best runs."""
    if not settings:
        return ("–",) * 5
    longest = max(minutes for minutes, _ in settings)
    means = {s: _mean_bits(runs) for s, runs in settings.items() if s[0] == longest}
    setting = min(means, key=lambda s: means[s])
    bits = [_bits(entry) for _, entry in settings[setting]]
    config = settings[setting][0][0].config
    assert isinstance(config, LMRunConfig)
    spread = f" ± {statistics.stdev(bits):.4f}" if len(bits) > 1 else ""
    tokens = f"{config.steps * config.tokens / 1e6:.2f}"
    shown = f"{means[setting]:.4f}{spread}"
    return f"{longest:g}", tokens, f"{setting[1]:g}", str(len(bits)), shown


def _bits(entry: Entry) -> float:
    assert entry.result is not None
    return float(entry.result["bits_per_byte"])


def _mean_bits(runs: list[tuple[Cell, Entry]]) -> float:
    return statistics.mean(_bits(entry) for _, entry in runs)
