"""Accuracy against hidden size for compression and copying (the paper's appendix figure).

Laptop scale: compression of 16 tokens, selective copying of 16 tokens among 64, with baselines.
Muon as in table_mad, half its epochs, one seed.
"""

from collections.abc import Iterator
from dataclasses import replace

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, published_runs, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

ROWS = [bdlru(1), bdlru(4), hlru(4), "LSTM", bdlru(2), bdlru(8)]
LENGTHS = {"compress": 16, "copy": 64}
STATES = (16, 64, 256, 32, 128)


def laptop(row: str, task: str, states: int) -> Cell:
    model = with_row(ModelConfig(width=64), row, states)
    config = RunConfig(
        task,
        model,
        length=LENGTHS[task],
        train_examples=10_000,
        batch=32,
        epochs=5,
        warmup=50,
        clip=1.0,
    )
    return Cell(
        row,
        f"{task}, {states} states",
        "Muon",
        replace(config, optimiser="muon", lr=3e-3, matrix_lr=0.015),
    )


def as_in_the_paper(row: str, task: str, states: int) -> Cell:
    data = RunConfig(task, length=64, train_examples=20_000)
    return Cell(
        row, f"{task}, {states} states", "plain", next(published_runs(data, row, (states,)))
    )


def cells(scale: str) -> Iterator[Cell]:
    if scale == "paper":
        for task in LENGTHS:
            for states in (128, 256, 512, 1024, 2048, 4096):
                yield from (as_in_the_paper(row, task, states) for row in ROWS)
        return
    for rows, sizes in ((ROWS[:4], STATES[:3]), (ROWS, STATES)):
        for states in sizes:
            for task in LENGTHS:
                yield from (laptop(row, task, states) for row in rows)
