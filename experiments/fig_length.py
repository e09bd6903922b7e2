"""Do models trained at 16 steps generalise to 4,096? Groups, with the preset `sharpened`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, sharpened_preset
from statemix.train.metrics import accuracy_by_length

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
STEPS = {"S3": 2500, "S4": 6000, "S5": 6000}  # enough for several restarts
ROWS = {
    "S3": [bdlru(1), bdlru(2), bdlru(3), hlru(3), "LSTM"],
    "S4": [bdlru(3), bdlru(4), "LSTM"],
    "S5": [bdlru(4), bdlru(5), bdlru(8), "LSTM"],
}


def cells() -> Iterator[Cell]:
    for seed in (0, 1):
        for group, rows in ROWS.items():
            for row in rows:
                model = with_row(ModelConfig(width=64), row, states=160)
                config = sharpened_preset(
                    RunConfig(group.lower(), model, train_examples=100_000, seed=seed)
                )
                yield Cell(
                    row, group, "tracking", replace(config, epochs=1000, max_steps=STEPS[group])
                )


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    return {"by_length": accuracy_by_length(task, model, LENGTHS, 64, config.seed)}
