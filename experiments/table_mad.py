"""In-context recall, selective copying and compression (the paper's tables of MAD).

A cell of the paper is the mean over four configurations: one with vocabulary 16, length 64 and
20,000 sequences, and three that change one of these to 32, 128 and 10,000. Laptop scale: the
fourth configuration alone (10,000 sequences), width 64, 128 states (256 for recall), 10 epochs. The
recipes `mad preset` are the paper's configurations with `statemix train --preset mad`, width 128:
the first for every row, the others for some; a number is the mean over those that have been run.
Paper scale: all four.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, block_sizes, hlru, published_runs, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig, mad_preset

COLUMNS = ("recall", "copy", "compress")
STATES = {"recall": 256, "copy": 128, "compress": 128}
Configuration = tuple[int, int, int]  # size of the vocabulary, length, training sequences
FIRST_OF_FOUR = (16, 64, 20_000)
CONFIGURATIONS = (FIRST_OF_FOUR, (32, 64, 20_000), (16, 128, 20_000), (16, 64, 10_000))
FIRST = [*(bdlru(m) for m in (1, 2, 4, 8)), *BASELINES, *(hlru(m) for m in (1, 2, 4, 8))]
AS_MAD = {"copy": {"placement": "mad"}, "recall": {"last_key": "distinct"}}
UNITS = [*(bdlru(m) for m in (4, 2, 8, 16, 1)), *(hlru(m) for m in (4, 2, 8, 16))]
MORE = [*(name(m) for m in (3, 6, 5) for name in (bdlru, hlru)), *BASELINES[1:]]
EXTENDED = [*(bdlru(m) for m in (4, 1, 2, 8)), hlru(2), hlru(4), "LSTM"]
REST = [*(bdlru(m) for m in (3, 5, 6, 16)), *(hlru(m) for m in (3, 5, 6, 16))]


def preset_states(row: str, column: str) -> int:
    """Number of states: 512, or 256 hidden units for an LSTM.

    An H-LRU has 256 channels, or 512 for compression, and m states in each.
    """
    kind, _, size = row.partition(" m")
    channels = 512 if column == "compress" else 256
    return channels * int(size) if kind == "H-LRU" else 256 if kind == "LSTM" else 512


def preset(row: str, column: str, seed: int, configuration: Configuration = FIRST_OF_FOUR) -> Cell:
    """One of the four configurations with `mad_preset`: width 128."""
    vocab, length, examples = configuration
    model = with_row(ModelConfig(), row, preset_states(row, column))
    if row in BASELINES[2:]:
        model = replace(model, options={**model.options, "form": "fla"})
    options = AS_MAD.get(column, {}) | ({} if vocab == 16 else {"vocab": vocab})
    config = mad_preset(RunConfig(column, model, task_options=options, length=length, seed=seed))
    epochs = -(-config.max_steps * config.batch // examples)
    name = f"mad preset, vocabulary {vocab}, length {length}, {examples} sequences"
    config = replace(config, train_examples=examples, epochs=epochs)
    return Cell(row, column, name, config, average="mad preset")


def with_presets() -> Iterator[Cell]:
    """Three seeds of the first configuration, then the others, then rows outside the main table."""
    seeds = range(3)
    for seed, row in product(seeds, (*UNITS, "LSTM")):
        yield from (preset(row, column, seed) for column in COLUMNS)
    for configuration, row, column in product(CONFIGURATIONS[1:], EXTENDED, COLUMNS):
        yield preset(row, column, 0, configuration)
    for seed, row, column in product(seeds, MORE, COLUMNS):
        yield preset(row, column, seed)


def laptop(row: str, column: str, seed: int) -> Cell:
    """Muon in small batches, which learns in a minute or two what AdamW does not learn in ten.

    The learning rates come from a few trials with BD-LRU at m = 4.
    """
    model = with_row(ModelConfig(width=64), row, STATES[column])
    config = RunConfig(
        column,
        model,
        length=64,
        train_examples=10_000,
        batch=32,
        epochs=10,
        warmup=50,
        clip=1.0,
        seed=seed,
    )
    return Cell(
        row,
        column,
        "Muon, one of four configurations",
        replace(config, optimiser="muon", lr=3e-3, matrix_lr=0.015),
    )


def longer(row: str, column: str) -> Cell:
    """Six times the steps: how much of the gap to the paper is a matter of training time?"""
    return Cell(
        row,
        column,
        "Muon, 60 epochs, one of four configurations",
        replace(laptop(row, column, 0).config, epochs=60),
    )


def with_adamw(row: str, column: str) -> Cell:
    """The same number of sequences with AdamW: the table without Muon."""
    model = with_row(ModelConfig(width=64), row, states=128)
    config = RunConfig(column, model, length=64, train_examples=10_000, lr=3e-3, clip=1.0, epochs=8)
    return Cell(row, column, "AdamW, one of four configurations", config)


def as_in_the_paper(row: str, column: str) -> Iterator[Cell]:
    for vocab, length, examples in CONFIGURATIONS:
        options = {"vocab": vocab, **AS_MAD.get(column, {})}
        name = f"vocabulary {vocab}, length {length}, {examples} sequences"
        data = RunConfig(column, task_options=options, length=length, train_examples=examples)
        for config in published_runs(data, row):
            yield Cell(row, column, name, config, average="as published")


def cells(scale: str) -> Iterator[Cell]:
    """The rows of the paper's main table come first."""
    assert len(FIRST + REST) == len(BASELINES) + 2 * len(block_sizes)
    if scale != "paper":
        yield from with_presets()
    for rows in (FIRST, REST):
        for row in rows:
            for column in COLUMNS:
                if scale == "paper":
                    yield from as_in_the_paper(row, column)
                else:
                    yield laptop(row, column, 0)
    if scale != "paper":
        yield from (with_adamw(row, "recall") for row in FIRST)
        yield from (with_adamw(row, "copy") for row in FIRST[:4])
        yield from (
            longer(row, "copy")
            for row in (bdlru(4), bdlru(16), "LSTM", hlru(4), bdlru(8), bdlru(1))
        )
        yield from (longer(row, "compress") for row in (hlru(8), bdlru(4), hlru(2)))
