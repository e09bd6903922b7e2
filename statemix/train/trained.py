"""Loading a trained run: its config, its task and the selected weights."""

import json
from pathlib import Path

from torch import nn

from statemix.config.task import RunConfig, config_from_dict
from statemix.layers import MIXERS
from statemix.runs.checkpoint import load_checkpoint, with_prefix
from statemix.runs.layout import CHECKPOINT, CONFIG
from statemix.tasks import Task, find_task
from statemix.train.state import Counters, harden, make_model

__all__ = ["load_trained"]


def load_trained(directory: Path) -> tuple[RunConfig, Task, nn.Module]:
    """The run in `directory`, with the weights of its best epoch in a model in eval mode."""
    config = _read_config(directory)
    task = _find_task(config)
    tensors, state = load_checkpoint(directory / CHECKPOINT)
    length = (
        tensors["best.positions"].shape[0]
        if "best.positions" in tensors
        else config.length or task.length
    )
    model = make_model(config, task, length, attempt=0)
    try:
        model.load_state_dict(with_prefix(tensors, "best."))
    except RuntimeError as error:
        raise ValueError(
            f"The checkpoint in {directory} does not fit its config: "
            f"{str(error).splitlines()[-1].strip()}"
        ) from error
    if Counters(**state["counters"]).best_is_hard:
        harden(model)
    return config, task, model.eval()


def _read_config(directory: Path) -> RunConfig:
    for name in (CONFIG, CHECKPOINT):
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory} is not the directory of a run: it has no {name}.")
    try:
        config = config_from_dict(json.loads((directory / CONFIG).read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{directory / CONFIG} is damaged: {error}.") from error
    if config.model.mixer not in MIXERS:
        raise ValueError(
            f"{directory} was trained with the mixer {config.model.mixer!r}. "
            "Give the file that registers it with --files."
        )
    return config


def _find_task(config: RunConfig) -> Task:
    try:
        return find_task(config.task, config.task_options)
    except ValueError as error:
        raise ValueError(
            f"{error} If {config.task!r} is a task of your own, "
            "give the file that registers it with --files."
        ) from error
