"""What the start contributes: one factor at a time around the start of `mad_preset`.

Compression of 16 tokens for 600 steps, and selective copying of 16 tokens among 64 for 2,000 steps.
A recipe is the preset with one factor changed: the standard deviation of the gates' weights, the
bias of the gate through which a state keeps its value, the bias of the input gate, and the initial
positions of the autoencoder.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig, mad_preset

SIZES = {bdlru(4): 256, bdlru(16): 256, hlru(4): 1024}  # 256 channels of order 4
LENGTHS = {"compress": 16, "copy": 64}
STEPS = {"compress": 600, "copy": 2000}
STARTS = {
    "compress": {"std": 0.3, "own_bias": 10.0},
    "copy": {"std": 0.2, "own_bias": 4.0},
}
OTHER_BIAS = {"compress": 4.0, "copy": 10.0}
PAPER = {"std": 0.02, "own_bias": 0.0}
SMOOTH = {"positions": "smooth", "position_std": 0.1}
NOISE = {"positions": "normal", "position_std": 0.02}


def factors(task: str) -> dict[str, tuple[dict[str, float], dict[str, Any]]]:
    """Each recipe: the start of the gates, and of the positions if the task has any."""
    start = STARTS[task]
    bias = OTHER_BIAS[task]
    recipes = {
        "as published": (PAPER, NOISE),
        "the preset": (start, SMOOTH),
        "weights .02": ({**start, "std": 0.02}, SMOOTH),
        "weights .1": ({**start, "std": 0.1}, SMOOTH),
        "weights .5": ({**start, "std": 0.5}, SMOOTH),
        "no bias": ({**start, "own_bias": 0.0}, SMOOTH),
        f"bias {bias:.0f}": ({**start, "own_bias": bias}, SMOOTH),
        "input bias 4": ({**start, "input_bias": 4.0}, SMOOTH),
    }
    if task == "compress":
        recipes |= {
            "noise of .02 as positions": (start, NOISE),
            "noise of .1 as positions": (start, {**NOISE, "position_std": 0.1}),
            "smooth positions of .4": (start, {**SMOOTH, "position_std": 0.4}),
            "published gates, smooth positions": (PAPER, SMOOTH),
        }
    return recipes


def cell(row: str, task: str, recipe: str, seed: int) -> Cell:
    gates, positions = factors(task)[recipe]
    model = with_row(ModelConfig(), row, SIZES[row])
    options = {"placement": "mad"} if task == "copy" else {}
    data = RunConfig(task, model, task_options=options, length=LENGTHS[task], seed=seed)
    config = mad_preset(data)
    model = replace(config.model, options={**config.model.options, "init": gates})
    if task == "compress":
        model = replace(model, **positions)
    steps = STEPS[task]
    epochs = -(-steps // config.steps_per_epoch)
    return Cell(row, task, recipe, replace(config, model=model, max_steps=steps, epochs=epochs))


def cells() -> Iterator[Cell]:
    for task in STARTS:
        for seed in range(3):
            for row in SIZES:
                yield from (cell(row, task, recipe, seed) for recipe in factors(task))
