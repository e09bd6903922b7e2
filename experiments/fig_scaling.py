"""Accuracy against hidden size, compression and selective copying, with baselines (the paper's appendix figure)."""

from collections.abc import Iterator

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

ROWS = [bdlru(1), bdlru(2), bdlru(4), bdlru(8), hlru(4), "LSTM"]
STATES = {"laptop": (16, 32, 64, 128, 256), "paper": (128, 256, 512, 1024, 2048, 4096)}


def cells(scale: str) -> Iterator[Cell]:
    for task, length in (("compress", 32), ("copy", 64)):
        for states in STATES[scale]:
            for row in ROWS:
                model = with_row(ModelConfig(width=64), row, states)
                config = RunConfig(task, model, length=length, train_examples=10_000, lr=3e-3, clip=1.0, epochs=8)
                yield Cell(row, f"{task}, {states} states", "plain", config)
