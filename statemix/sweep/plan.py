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
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

from statemix.runs.plugins import load_file
from statemix.train import RunConfig

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
        raise FileNotFoundError(
            f"There is no experiment {path}. An experiment is a Python file with a function `cells`."
        )
    module = load_file(path)
    if not callable(getattr(module, "cells", None)):
        raise ValueError(
            f"The experiment {path} must define `cells() -> Iterator[RunConfig]`. If it is a script, run it: python {path}."
        )
    return module


def load_places(path: Path, scale: str = "laptop") -> list[Cell]:
    """All cells of an experiment."""
    module = load_experiment(path)
    takes_scale = bool(inspect.signature(module.cells).parameters)
    if scale not in SCALES:
        raise ValueError(f"Unknown scale {scale!r}. Available: {', '.join(SCALES)}.")
    if scale != SCALES[0] and not takes_scale:
        raise ValueError(
            f"The experiment {path} has one scale only: its `cells` takes no argument."
        )
    yielded = module.cells(scale) if takes_scale else module.cells()
    if not isinstance(yielded, Iterable):
        raise ValueError(f"`cells` of {path} must yield RunConfig, it returned {yielded!r}.")
    cells = [place_of(cell) if isinstance(cell, RunConfig) else cell for cell in yielded]
    for cell in cells:
        if not isinstance(cell, Cell):
            raise ValueError(f"`cells` of {path} must yield RunConfig, got {type(cell).__name__}.")
    return cells


def place_of(config: RunConfig) -> Cell:
    """A bare config stands in the row of its mixer, in the column of its task."""
    options = " ".join(f"{key}={value}" for key, value in config.model.options.items())
    return Cell(f"{config.model.mixer} {options}".strip(), config.task, config.optimiser, config)


def load_scales(path: Path) -> dict[str, list[Cell]]:
    """The cells of an experiment at each of its scales."""
    scales = SCALES if inspect.signature(load_experiment(path).cells).parameters else SCALES[:1]
    return {scale: load_places(path, scale) for scale in scales}


@dataclass(frozen=True)
class Where:
    """Which places of an experiment: patterns as of files (`BD-LRU m[1-5]`), one of which must match; none for all."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    def choose(self, cells: list[Cell]) -> list[Cell]:
        """The cells that match, if any do."""
        for name, patterns in (
            ("row", self.rows),
            ("column", self.columns),
            ("variant", self.variants),
        ):
            cells = matching(cells, name, patterns)
        return cells


def matching(cells: list[Cell], name: str, patterns: tuple[str, ...]) -> list[Cell]:
    """The cells whose `name` matches one of the patterns, if there are any; each pattern must match some."""
    present = list(dict.fromkeys(getattr(cell, name) for cell in cells))
    for pattern in patterns:
        if not any(fnmatchcase(value, pattern) for value in present):
            raise ValueError(
                f"No {name} {pattern!r} in what is chosen of the experiment. Available: {', '.join(present)}."
            )
    return [
        cell
        for cell in cells
        if not patterns or any(fnmatchcase(getattr(cell, name), pattern) for pattern in patterns)
    ]


def load_cells(path: Path, scale: str = "laptop", where: Where | None = None) -> list[RunConfig]:
    """The configs that an experiment yields, those of the chosen places, each once."""
    cells = load_places(path, scale)
    cells = cells if where is None else where.choose(cells)
    return list({cell.config.id: cell.config for cell in cells}.values())


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
