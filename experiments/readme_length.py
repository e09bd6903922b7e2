"""The README's picture: accuracy on S5 from 16 tokens, as in training, to 65,536.

Each model is trained with the aids that help it: a curriculum for all, the preset `sharpened` for
BD-LRU; for the baselines a feed-forward layer and a learning rate found in earlier runs. A model
that cannot learn a prefix moves on after some steps. `python docs/render.py` draws the picture from
the ledger.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, with_row
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, sharpened_preset
from statemix.train.metrics import accuracy_by_length

LENGTHS = (16, 64, 256, 1024, 4096, 16384, 65536)
SEQUENCES = 16
SEEDS = (900, 901, 902)
WITHOUT_AIDS = {"sharpen": 1.0, "hold": 0, "restart_after": 0}
ROWS: dict[str, dict[str, Any]] = {
    bdlru(5): {},
    bdlru(1): {"hold": 0, "restart_after": 0, "stage_steps": 100, "max_steps": 1000},
    "LSTM": {**WITHOUT_AIDS, "lr": 5e-3, "max_steps": 6000},
    "Mamba2": {**WITHOUT_AIDS, "lr": 4e-3, "stage_steps": 100, "max_steps": 1000},
}


def cells() -> Iterator[Cell]:
    for row, changes in ROWS.items():
        for seed in SEEDS:
            model = with_row(ModelConfig(width=64), row, states=160)
            config = sharpened_preset(RunConfig("s5", model, train_examples=100_000, seed=seed))
            if row in BASELINES:
                config = replace(config, model=replace(config.model, channel_mixer="swiglu"))
            yield Cell(row, "S5", "tracking", replace(config, epochs=1000, **changes))


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    return {"by_length": accuracy_by_length(task, model, LENGTHS, SEQUENCES, config.seed)}
