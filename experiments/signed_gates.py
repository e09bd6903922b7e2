"""Signed gates: can a block of three track S4, which three non-negative states cannot?

Softmax compared with tanh and linear gates, at the sizes where
`statemix.analysis.representations` predicts a difference, and one size above.  Runs end when
sixteen tokens are learned, without the held-out check on longer sequences, since the question here
is which solutions generalise to them.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.paper import bdlru, with_row
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, sharpened_preset
from statemix.train.metrics import accuracy_by_length

PLACES = (("s2", 1), ("s3", 2), ("s3", 3), ("s4", 3), ("s4", 4), ("s5", 4), ("s5", 5))
CARRIED = (("s4", 4), ("s5", 5))  # softmax needs restarts here, and more steps for some seeds
GATES = ("softmax", "tanh", "linear")


def cells() -> Iterator[Cell]:
    for seed in (0, 1, 2):
        for task, m in PLACES:
            for gate in GATES:
                model = with_row(ModelConfig(width=64), bdlru(m), states=96)
                model = replace(model, options={**model.options, "gate": gate})
                config = sharpened_preset(RunConfig(task, model, train_examples=50_000, seed=seed))
                config = replace(
                    config,
                    sharpen=1.0 if gate == "linear" else config.sharpen,
                    epochs=1000,
                    max_steps=2500,
                    hold=0,
                )
                yield Cell(f"{gate} m{m}", task.upper(), "tracking", config)
                if gate == "softmax" and (task, m) in CARRIED:
                    yield Cell(
                        f"{gate} m{m}",
                        task.upper(),
                        "tracking, more steps",
                        replace(config, max_steps=6000),
                    )


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    return {"by_length": accuracy_by_length(task, model, (16, 256), 128, config.seed)}
