"""Parity, cycle navigation and modular arithmetic, after Delétang et al. (the paper's table).

Models are trained on words of all lengths up to 40 (39 without brackets), with one answer per word,
and tested on words of the same lengths. The paper gives neither lengths nor sizes, but its
accuracies rule out a single test length: parity of .55 to .61 for an H-LRU is above chance only if
short words are among the tested ones. Width 64, 192 states and SwiGLU, 100,000 sequences, Muon.

The columns `..., length 40` are tested at the longest length only, with smaller models: 48 states
without a channel mixer, 10,000 sequences and AdamW, or 96 states, 100,000 sequences and Muon. No
model learns arithmetic from 10,000 sequences, not even an LSTM, which does not learn parity either.
Each model is also tested at single lengths, from 5 to 100.
"""

import statistics
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, hlru, published_runs, with_row
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig
from statemix.train.metrics import accuracy_by_length

COLUMNS = {
    "parity": "parity",
    "cycle_nav": "cycle_nav",
    "mod_arith_no_brackets": "mod_arith",
    "mod_arith_brackets": "mod_arith_brackets",
}
ARITHMETIC = ("mod_arith_no_brackets", "mod_arith_brackets")
LENGTHS = (5, 9, 19, 29, 41, 60, 61, 80, 81, 99, 100)
FIRST = [bdlru(m) for m in (1, 2, 3, 4, 5)]
ORDERS = [hlru(m) for m in (4, 2, 8, 16, 3, 5, 6)]
REST = [*(bdlru(m) for m in (6, 8, 16)), "LSTM", *(hlru(m) for m in (1, 2, 3, 4, 5, 6, 8, 16))]
ORDERED = [*(bdlru(m) for m in (5, 16, 1, 2, 3, 4, 6, 8)), "LSTM", *ORDERS]  # order 1 is BD-LRU m1


def length_of(column: str) -> int:
    """The test length: 40, or 39 for expressions without brackets, whose lengths are odd."""
    return 39 if column == "mod_arith_no_brackets" else 40


def on_all_lengths(row: str, column: str, seed: int) -> Cell:
    """Gates that start nearly hard, and Muon; tested on the lengths of training."""
    model = with_row(ModelConfig(width=64), row, states=192)
    if row not in BASELINES:
        model = replace(model, options={**model.options, "init": "select"})
    config = RunConfig(
        COLUMNS[column],
        model,
        length=length_of(column),
        tested=(1, length_of(column)),
        train_examples=100_000,
        optimiser="muon",
        lr=2e-3,
        matrix_lr=5e-3,
        clip=1.0,
        warmup=100,
        cooldown=0.3,
        epochs=5,
        seed=seed,
    )
    return Cell(row, column, "Muon", config)


def laptop(row: str, column: str, seed: int) -> Cell:
    """AdamW and 10,000 sequences; tested at the longest length."""
    model = with_row(ModelConfig(width=64, channel_mixer="none"), row, states=48)
    config = RunConfig(
        COLUMNS[column],
        model,
        length=length_of(column),
        train_examples=10_000,
        lr=1e-2,
        clip=1.0,
        epochs=12,
        seed=seed,
    )
    return Cell(row, f"{column}, length 40", "plain", config)


def with_more(row: str, column: str, channel_mixer: str = "none") -> Cell:
    """Ten times the sequences, and Muon, which arithmetic needs."""
    cell = laptop(row, column, 0)
    model = with_row(replace(cell.config.model, channel_mixer=channel_mixer), row, states=96)
    more = replace(
        cell.config,
        model=model,
        train_examples=100_000,
        epochs=4,
        warmup=100,
        optimiser="muon",
        lr=4e-3,
    )
    recipe = "Muon, 100k" if channel_mixer == "none" else "Muon, 100k, SwiGLU"
    return Cell(row, cell.column, recipe, more)


def as_in_the_paper(row: str, column: str) -> Iterator[Cell]:
    length = length_of(column)
    data = RunConfig(COLUMNS[column], length=length, tested=(1, length), train_examples=100_000)
    for config in published_runs(data, row):
        yield Cell(row, column, "plain", config)


def cells(scale: str) -> Iterator[Cell]:
    """First all lengths; then the longest only, BD-LRU first, and more seeds."""
    if scale == "paper":
        for column in COLUMNS:
            for row in FIRST + REST:
                yield from as_in_the_paper(row, column)
        return
    for seed in range(3):
        for column in COLUMNS:
            yield from (on_all_lengths(row, column, seed) for row in ORDERED)
    for rows, seed in ((FIRST, 0), (REST, 0), (FIRST, 1), (FIRST, 2)):
        for column in COLUMNS:
            for row in rows:
                yield laptop(row, column, seed)
    sizes = (16, 5, 8, 2, 1, 4, 3)
    yield from (with_more("LSTM", column) for column in COLUMNS)
    yield from (with_more(bdlru(m), ARITHMETIC[0]) for m in sizes)
    yield from (with_more(row, ARITHMETIC[0], "swiglu") for row in ("LSTM", bdlru(16)))
    yield from (with_more(bdlru(m), ARITHMETIC[1]) for m in sizes)


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    """Accuracy at lengths within and beyond training, and the mean over all training lengths."""
    by_length = accuracy_by_length(
        task, model, [length for length in LENGTHS if task.fits(length)], 512, config.seed
    )
    if config.tested:
        return {"by_length": by_length}
    within = accuracy_by_length(
        task, model, [length for length in range(1, 41) if task.fits(length)], 128, config.seed
    )
    return {"by_length": by_length, "within": statistics.mean(within.values())}
