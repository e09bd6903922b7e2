"""The two kinds of runs that a cell can be: a task, or a language model."""

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from statemix.config.lm import Execution, LMRunConfig, run_config_from_dict
from statemix.runs.checkpoint import DamagedCheckpoint
from statemix.runs.layout import CHECKPOINT
from statemix.train import RunConfig, config_from_dict, train
from statemix.train.sources import check_sources

__all__ = ["Config", "Report", "read_config", "train_config"]

Config = RunConfig | LMRunConfig
Report = Callable[[dict[str, Any]], None]  # receives the metrics of an epoch, or of a step
_EXECUTION = Execution(save_every=500, keep=1)


def read_config(data: Mapping[str, Any]) -> Config:
    """The config that `data`, read from JSON, describes."""
    return config_from_dict(data) if "task" in data else run_config_from_dict(data)


def train_config(config: Config, directory: Path, data: Path, report: Report) -> dict[str, Any]:
    """Train in `directory`, from the last checkpoint if there is one, and return the result.

    A language model reads the prepared text under `data` that its config names.
    """
    if isinstance(config, RunConfig):
        return _train_task(config, directory, report)
    return _train_lm(config, directory, data, report)


def _train_task(config: RunConfig, directory: Path, report: Report) -> dict[str, Any]:
    """Train a task; set a damaged checkpoint aside and train from the beginning."""
    check_sources(config, directory, resume=True)
    try:
        return asdict(train(config, directory, observer=lambda _, epoch: report(asdict(epoch))))
    except DamagedCheckpoint:
        (directory / CHECKPOINT).rename(directory / f"{CHECKPOINT}.damaged")
        return asdict(train(config, directory, observer=lambda _, epoch: report(asdict(epoch))))


def _train_lm(config: LMRunConfig, directory: Path, data: Path, report: Report) -> dict[str, Any]:
    """Train a language model in this process; the CPU time of a resumed run is not known."""
    from statemix.lm.ranks import ranks_of
    from statemix.lm.step import find_text
    from statemix.lm.trainer import train_lm

    text = find_text(data, config.data)
    is_new = not directory.exists()
    started = time.process_time()
    with ranks_of(_EXECUTION) as ranks:
        result = train_lm(
            config, _EXECUTION, text, directory, ranks, lambda _, step: report(asdict(step))
        )
    return asdict(result) | {"cpu_seconds": time.process_time() - started if is_new else None}
