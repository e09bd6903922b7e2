"""An experiment is a Python file with `cells()`, which yields the runs of the experiment.

    def cells() -> Iterator[RunConfig]:
        for m in (1, 2, 3):
            for seed in range(5):
                yield RunConfig("s3", ModelConfig(options={"n_blocks": 8, "block_size": m}), seed=seed)

It may yield `Cell(row, column, variant, config)` instead, to say where in a table or figure a run belongs; `cells(scale)` may offer
sizes to choose from, "laptop" if nobody does; and `measure(config, task, model)`, if it is there, looks at each trained model, and
what it returns is kept in the ledger with the result.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

from statemix.train import RunConfig
from statemix.train.plugins import load_file

SCALES = ("laptop", "paper")


@dataclass(frozen=True)
class Cell:
    """A run and its place: the row and column of a table or figure, and the recipe by which it is trained."""

    row: str
    column: str
    variant: str
    config: RunConfig


def load_experiment(path: Path) -> ModuleType:
    """The module of an experiment, which has `cells`."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no experiment {path}. An experiment is a Python file with a function `cells`.")
    module = load_file(path)
    if not callable(getattr(module, "cells", None)):
        raise ValueError(f"The experiment {path} must define `cells() -> Iterator[RunConfig]`. If it is a script, run it: python {path}.")
    return module


def load_places(path: Path, scale: str = "laptop") -> list[Cell]:
    """All cells of an experiment; a bare config has no place."""
    module = load_experiment(path)
    takes_scale = bool(inspect.signature(module.cells).parameters)
    if scale not in SCALES:
        raise ValueError(f"Unknown scale {scale!r}. Available: {', '.join(SCALES)}.")
    if scale != SCALES[0] and not takes_scale:
        raise ValueError(f"The experiment {path} has one scale only: its `cells` takes no argument.")
    yielded = module.cells(scale) if takes_scale else module.cells()
    if not isinstance(yielded, Iterable):
        raise ValueError(f"`cells` of {path} must yield RunConfig, it returned {yielded!r}.")
    cells = [Cell("", "", "", cell) if isinstance(cell, RunConfig) else cell for cell in yielded]
    for cell in cells:
        if not isinstance(cell, Cell):
            raise ValueError(f"`cells` of {path} must yield RunConfig, got {type(cell).__name__}.")
    return cells


def load_scales(path: Path) -> dict[str, list[Cell]]:
    """The cells of an experiment at each of its scales."""
    scales = SCALES if inspect.signature(load_experiment(path).cells).parameters else SCALES[:1]
    return {scale: load_places(path, scale) for scale in scales}


def load_cells(path: Path, scale: str = "laptop") -> list[RunConfig]:
    """The configs that an experiment yields, each once."""
    return list({cell.config.id: cell.config for cell in load_places(path, scale)}.values())


def grid(config: RunConfig, lrs: Iterable[float], seeds: Iterable[int]) -> Iterator[RunConfig]:
    """The same run at every learning rate and seed."""
    for lr in lrs:
        for seed in seeds:
            yield replace(config, lr=lr, seed=seed)


def share(configs: list[RunConfig], job: int, jobs: int) -> list[RunConfig]:
    """Every `jobs`-th config, from number `job` on: what one task of a job array runs."""
    if not 0 <= job < jobs:
        raise ValueError(f"The job index must be in 0 .. {jobs - 1}, got {job}.")
    return configs[job::jobs]
