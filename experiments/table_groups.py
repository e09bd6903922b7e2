"""Products of permutations (the paper's table of S3, S4 and S5), at every one of 16 steps.

Recipes:

    plain             AdamW and a cosine schedule, with a BOS token
    tracking          the aids of `sharpened_preset`
    curriculum        prefixes that grow, whether they are learned or not
    Muon, curriculum  the same number of steps with Muon
    Muon              3,000 steps on whole sequences, without a BOS token
    long              four times the steps
    wide              three times the steps and ten times the states

Laptop scale: width 64, 96 states, one layer with SwiGLU, and fewer epochs than the paper.  Rows
outside the main table have half of these epochs (`plain, longer` has all of them).  S2 appears only
in the paper's text.  Several learning rates were compared where runs are cheap; all other cells
have one. Paper scale: `published_runs`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, hlru, published_runs, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig, sharpened_preset


@dataclass(frozen=True)
class Column:
    """A group, and the number of training sequences."""

    task: str
    examples: int
    batch: int
    epochs: int


COLUMNS = {
    "S3-10k": Column("s3", 10_000, 128, 20),
    "S4-50k": Column("s4", 50_000, 128, 6),
    "S5-100k": Column("s5", 100_000, 128, 4),
    "S3-250": Column("s3", 250, 32, 150),
    "S4-3k": Column("s4", 3_000, 32, 25),
}
TEXT = {"S2-10k": Column("s2", 10_000, 128, 20)}
CHEAP = ("S3-10k", "S3-250", "S4-3k")
MAIN = [bdlru(m) for m in (1, 2, 3, 4, 5)]
BLOCKS = [bdlru(m) for m in (6, 8, 16)]
ORDERS = [hlru(m) for m in (1, 2, 3, 4, 5, 6, 8, 16)]


def plain(row: str, column: str, lr: float, seed: int) -> Cell:
    """The honest protocol at laptop scale."""
    c = (COLUMNS | TEXT)[column]
    model = with_row(ModelConfig(width=64), row, states=96)
    epochs = c.epochs if row in (*MAIN, "LSTM") else max(1, c.epochs // 2)
    config = RunConfig(
        c.task,
        model,
        train_examples=c.examples,
        batch=c.batch,
        epochs=epochs,
        lr=lr,
        clip=1.0,
        seed=seed,
    )
    return Cell(row, column, "plain", replace(config, patience=c.epochs // 2))


def in_full(cell: Cell) -> Cell:
    """The cell with all epochs of the main table, for rows that have half of them."""
    return Cell(
        cell.row,
        cell.column,
        f"{cell.recipe}, longer",
        replace(cell.config, epochs=COLUMNS[cell.column].epochs),
    )


def tracking(row: str, column: str, seed: int) -> Cell:
    """Every aid except the held-out check on longer sequences; 160 states, no channel mixer."""
    c = COLUMNS[column]
    model = with_row(ModelConfig(width=64), row, states=160)
    config = sharpened_preset(RunConfig(c.task, model, train_examples=c.examples, seed=seed))
    return Cell(
        row, column, "tracking", replace(config, batch=c.batch, epochs=1000, max_steps=3000, hold=0)
    )


def curriculum(row: str, column: str, seed: int) -> Cell:
    """Growing prefixes, learned or not, for groups that the block cannot represent exactly.

    The model has a SwiGLU, and the schedule is a cosine.
    """
    c = COLUMNS[column]
    model = with_row(ModelConfig(width=64), row, states=160)
    config = RunConfig(
        c.task, model, train_examples=c.examples, lr=5e-3, clip=1.0, warmup=100, seed=seed
    )
    grown = replace(
        config,
        curriculum=(2, 3, 4, 6, 9, 13),
        stage_steps=300,
        patience=0,
        epochs=1000,
        max_steps=4000,
    )
    return Cell(row, column, "curriculum", grown)


def longer(row: str, column: str, seed: int) -> Cell:
    """The curriculum with four times the steps, and more states."""
    cell = curriculum(row, column, seed)
    model = with_row(ModelConfig(width=64), row, states=384)
    return Cell(
        row,
        column,
        "long curriculum",
        replace(cell.config, model=model, stage_steps=400, max_steps=16_000),
    )


def wider(row: str, column: str, seed: int) -> Cell:
    """The long curriculum with another four times the states, and twice the width."""
    cell = longer(row, column, seed)
    model = with_row(ModelConfig(width=128), row, states=1536)
    return Cell(row, column, "wide curriculum", replace(cell.config, model=model, max_steps=12_000))


def with_muon(cell: Cell) -> Cell:
    """The same cell, trained with Muon."""
    return Cell(
        cell.row,
        cell.column,
        f"Muon, {cell.recipe}",
        replace(cell.config, optimiser="muon", lr=4e-3),
    )


def with_muon_only(row: str, column: str, seed: int) -> Cell:
    """Muon at a constant rate that decays over the last half of 3,000 steps, on whole sequences.

    An H-LRU has 192 channels, and the gates of both layers start nearly hard.
    """
    c = COLUMNS[column]
    kind, _, m = row.partition(" m")
    model = with_row(
        ModelConfig(width=64, bos=False), row, 192 * int(m) if kind == "H-LRU" else 384
    )
    if kind in ("BD-LRU", "H-LRU"):
        model = replace(model, options={**model.options, "init": "select"})
    elif row in BASELINES[2:]:
        model = replace(model, options={**model.options, "heads": 4, "head_dim": 32, "form": "fla"})
    config = RunConfig(c.task, model, train_examples=c.examples, clip=1.0, seed=seed)
    epochs = -(-3000 // config.steps_per_epoch)
    config = replace(
        config,
        optimiser="muon",
        lr=2e-3,
        matrix_lr=5e-3,
        warmup=100,
        cooldown=0.5,
        patience=0,
        max_steps=3000,
        epochs=epochs,
    )
    return Cell(row, column, "Muon", config)


def with_bos(row: str, column: str) -> Iterator[Cell]:
    """The paper's width and epochs, and a BOS token, which the paper does not have."""
    c = COLUMNS[column]
    model = with_row(ModelConfig(width=128), row, states=128)
    data = RunConfig(c.task, model, train_examples=c.examples, clip=0.0, epochs=200)
    for lr in (1e-3, 5e-4, 1e-4):
        for seed in range(5):
            yield Cell(row, column, "width 128, with BOS", replace(data, lr=lr, seed=seed))


def as_in_the_paper(row: str, column: str) -> Iterator[Cell]:
    c = COLUMNS[column]
    for config in published_runs(RunConfig(c.task, train_examples=c.examples), row):
        yield Cell(row, column, "plain", config)


def cells(scale: str) -> Iterator[Cell]:
    """The most informative cells come first."""
    rows = [*MAIN, "LSTM", *BLOCKS, *ORDERS, *BASELINES[1:]]
    main_columns = ("S3-10k", "S4-50k", "S5-100k")
    if scale == "paper":
        yield from itertools.chain.from_iterable(
            as_in_the_paper(row, column) for column in COLUMNS for row in rows
        )
        return
    yield from (plain(row, column, 3e-3, 0) for column in main_columns for row in [*MAIN, "LSTM"])
    yield from (tracking(row, column, 0) for column in main_columns for row in MAIN)
    yield from (curriculum(row, column, 0) for column in ("S5-100k", "S4-50k") for row in MAIN)
    yield from (curriculum(row, "S5-100k", seed) for seed in (1, 2) for row in MAIN[1:4])
    yield longer(bdlru(3), "S4-50k", 0)
    yield from (tracking(row, "S5-100k", 0) for row in BLOCKS)
    yield from (curriculum("LSTM", column, 0) for column in ("S4-50k", "S5-100k"))
    yield with_muon(longer(bdlru(3), "S4-50k", 0))
    yield from (plain(row, column, 3e-3, 0) for column in COLUMNS for row in rows)
    yield from (plain(row, "S2-10k", 3e-3, 0) for row in [*MAIN[:3], *ORDERS[:4], *BASELINES])
    yield from (
        plain(row, column, lr, 0)
        for lr in (1e-2, 1e-3)
        for row in [*MAIN, "LSTM"]
        for column in CHEAP
    )
    yield from (
        in_full(plain(row, "S3-10k", lr, 0)) for lr in (3e-3, 1e-2, 1e-3) for row in BASELINES[1:3]
    )
    yield from (
        plain(row, column, 3e-3, seed)
        for seed in (1, 2)
        for row in [*MAIN, "LSTM"]
        for column in CHEAP
    )
    yield from (
        plain(row, column, 3e-3, seed)
        for seed in (1, 2)
        for row in [*ORDERS[:4], *BLOCKS]
        for column in CHEAP
    )
    yield from (
        with_muon(curriculum(row, column, 0))
        for column in ("S5-100k", "S4-50k")
        for row in [*ORDERS, *MAIN[:4], *BASELINES[1:3]]
    )
    yield with_muon(curriculum(BASELINES[3], "S4-50k", 0))
    yield with_muon(wider(bdlru(3), "S4-50k", 0))
    yield from (
        plain(row, column, 3e-3, seed)
        for seed in (1, 2)
        for row in [*MAIN, "LSTM"]
        for column in COLUMNS
    )
    yield from (
        with_muon_only(row, column, seed)
        for seed in range(3)
        for column in main_columns
        for row in [*ORDERS[1:], *BASELINES[1:], *MAIN[:4]]
    )
    yield from itertools.chain.from_iterable(with_bos(row, "S3-250") for row in [*MAIN, "LSTM"])
