"""In-context recall, selective copying and compression (the paper's tables of MAD).

A paper cell is the mean over four configurations: vocabulary 16, length 64 and 20,000 sequences, and one of each changed to 32, 128 and
10,000.  Laptop scale: the fourth of them alone (10,000 sequences), width 64, 128 states, 8 epochs; paper scale: all four.
"""

from collections.abc import Iterator

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, block_sizes, hlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

COLUMNS = ("recall", "copy", "compress")
CONFIGURATIONS = ((16, 64, 20_000), (32, 64, 20_000), (16, 128, 20_000), (16, 64, 10_000))
FIRST = [*(bdlru(m) for m in (1, 2, 4, 8)), *BASELINES, *(hlru(m) for m in (1, 2, 4, 8))]
REST = [*(bdlru(m) for m in (3, 5, 6, 16)), *(hlru(m) for m in (3, 5, 6, 16))]


def laptop(row: str, column: str, seed: int) -> Cell:
    model = with_row(ModelConfig(width=64), row, states=128)
    config = RunConfig(column, model, length=64, train_examples=10_000, lr=3e-3, clip=1.0, epochs=8, seed=seed)
    return Cell(row, column, "one of four configurations", config)


def as_in_the_paper(row: str, column: str) -> Iterator[Cell]:
    for vocab, length, examples in CONFIGURATIONS:
        options, name = {"vocab": vocab}, f"vocabulary {vocab}, length {length}, {examples} sequences"
        for states in (128, 512, 2048):
            model = with_row(ModelConfig(width=128), row, states)
            for lr in (1e-3, 5e-4, 1e-4):
                for seed in range(5):
                    config = RunConfig(column, model, options, length=length, train_examples=examples, lr=lr, epochs=200, seed=seed)
                    yield Cell(row, column, name, config)


def cells(scale: str) -> Iterator[Cell]:
    """What the paper's main table has comes first."""
    assert len(FIRST + REST) == len(BASELINES) + 2 * len(block_sizes)
    for rows in (FIRST, REST):
        for column in COLUMNS:
            for row in rows:
                if scale == "paper":
                    yield from as_in_the_paper(row, column)
                else:
                    yield laptop(row, column, 0)
