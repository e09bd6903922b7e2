"""An experiment is a Python file with `cells()`, which yields the configs of its runs.

def cells() -> Iterator[RunConfig]:
    for m in (1, 2, 3):
        for seed in range(5):
            yield RunConfig("s3", ModelConfig(options={"n_blocks": 8, "block_size": m}), seed=seed)
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from statemix.train import RunConfig
from statemix.train.plugins import load_file


def load_cells(path: Path) -> list[RunConfig]:
    """The configs that an experiment yields, each once."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no experiment {path}. An experiment is a Python file with a function `cells`.")
    module = load_file(path)
    if not callable(getattr(module, "cells", None)):
        raise ValueError(f"The experiment {path} must define `cells() -> Iterator[RunConfig]`.")
    yielded = module.cells()
    if not isinstance(yielded, Iterable):
        raise ValueError(f"`cells` of {path} must yield RunConfig, it returned {yielded!r}.")
    configs = list(yielded)
    for config in configs:
        if not isinstance(config, RunConfig):
            raise ValueError(f"`cells` of {path} must yield RunConfig, got {type(config).__name__}.")
    return list({config.id: config for config in configs}.values())


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
