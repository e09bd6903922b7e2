"""An experiment is a Python file whose function `cells()` yields the configs of its runs.

    def cells() -> Iterator[RunConfig]:
        for m in (1, 2, 3):
            model = ModelConfig(options={"n_blocks": 8, "block_size": m})
            for seed in range(5):
                yield RunConfig("s3", model, seed=seed)

A config is a `RunConfig` (a task) or an `LMRunConfig` (a language model). `cells` may yield
`Cell(row, column, recipe, config)` instead, to place a run in a table or figure. `cells(scale)` may
offer two sizes, "laptop" (the default) and "paper". If the file has `measure(config, task, model)`,
it is called with each trained model, and the ledger keeps what it returns. For language models it
is `measure(config, saved)`.
"""

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

from statemix.config.lm import LMRunConfig
from statemix.config.presets import paper_protocol
from statemix.config.task import RunConfig
from statemix.runs.plugins import load_file
from statemix.sweep.kinds import Config

__all__ = ["Cell", "Where", "grid", "load_cells", "load_places", "load_scales", "share"]

SCALES = ("laptop", "paper")


@dataclass(frozen=True)
class Cell:
    """A run and its place: row and column of a table or figure, and the recipe that trains it.

    The numbers of recipes with the same `average` are averaged: configurations of one benchmark.
    """

    row: str
    column: str
    recipe: str
    config: Config
    average: str = ""


def load_experiment(path: Path) -> ModuleType:
    """Import an experiment, a file with a function `cells`."""
    if not path.is_file():
        raise FileNotFoundError(
            f"There is no experiment {path}. "
            "An experiment is a Python file with a function `cells`."
        )
    module = load_file(path)
    if not callable(getattr(module, "cells", None)):
        raise ValueError(
            f"The experiment {path} must define `cells() -> Iterator[RunConfig]`. "
            f"If it is a script, run it: python {path}."
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
    return [_as_cell(item, path) for item in yielded]


def _as_cell(item: object, path: Path) -> Cell:
    """A cell as it is; a config in the row of its mixer and the column of its task or text."""
    if isinstance(item, Cell):
        return item
    if not isinstance(item, RunConfig | LMRunConfig):
        raise ValueError(f"`cells` of {path} must yield RunConfig, got {type(item).__name__}.")
    options = " ".join(f"{key}={value}" for key, value in item.model.options.items())
    column = item.task if isinstance(item, RunConfig) else item.data
    return Cell(f"{item.model.mixer} {options}".strip(), column, item.optimiser, item)


def load_scales(path: Path) -> dict[str, list[Cell]]:
    """The cells of an experiment at each of its scales."""
    scales = SCALES if inspect.signature(load_experiment(path).cells).parameters else SCALES[:1]
    return {scale: load_places(path, scale) for scale in scales}


@dataclass(frozen=True)
class Where:
    """A choice of cells by patterns such as `BD-LRU m[1-5]`; an empty tuple matches all."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()

    def choose(self, cells: list[Cell]) -> list[Cell]:
        """The cells that match one of the patterns of each kind."""
        cells = _matching(cells, "row", self.rows)
        cells = _matching(cells, "column", self.columns)
        return _matching(cells, "recipe", self.recipes)


def _matching(cells: list[Cell], name: str, patterns: tuple[str, ...]) -> list[Cell]:
    """The cells whose `name` matches one of the patterns; each pattern must match some cell."""
    present = list(dict.fromkeys(getattr(cell, name) for cell in cells))
    for pattern in patterns:
        if not any(fnmatchcase(value, pattern) for value in present):
            raise ValueError(
                f"No {name} of the experiment matches {pattern!r}. Available: {', '.join(present)}."
            )
    return [
        cell
        for cell in cells
        if not patterns or any(fnmatchcase(getattr(cell, name), pattern) for pattern in patterns)
    ]


def load_cells(path: Path, scale: str = "laptop", where: Where | None = None) -> list[Config]:
    """The configs of an experiment, or of the chosen cells, without duplicates."""
    cells = load_places(path, scale)
    cells = cells if where is None else where.choose(cells)
    return list({cell.config.id: cell.config for cell in cells}.values())


def by_the_papers_protocol(configs: list[Config]) -> list[Config]:
    """The runs on tasks by the paper's protocol, without duplicates."""
    if any(isinstance(config, LMRunConfig) for config in configs):
        raise ValueError("The paper's protocol is one of runs on tasks, not of language models.")
    runs = [paper_protocol(config) for config in configs if isinstance(config, RunConfig)]
    return list({config.id: config for config in runs}.values())


def grid(config: RunConfig, lrs: Iterable[float], seeds: Iterable[int]) -> Iterator[RunConfig]:
    """The same run at every learning rate and seed."""
    for lr in lrs:
        for seed in seeds:
            yield replace(config, lr=lr, seed=seed)


def share(configs: list[Config], job: int, jobs: int) -> list[Config]:
    """Every `jobs`-th config, starting with number `job`: the share of one job in an array."""
    if not 0 <= job < jobs:
        raise ValueError(f"The job index must be in 0 .. {jobs - 1}, got {job}.")
    return configs[job::jobs]
