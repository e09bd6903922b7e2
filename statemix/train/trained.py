"""Loading a trained run: its config, its task and the selected weights."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from statemix.config.task import RunConfig, config_from_dict
from statemix.files.json_files import Damaged, damage, read_object
from statemix.files.tensors import check_tensors
from statemix.layers import MIXERS
from statemix.runs.checkpoint import unusable, with_prefix
from statemix.runs.layout import CHECKPOINT, CONFIG
from statemix.tasks import Task, find_task
from statemix.train.state import harden, load_state, make_model

__all__ = ["load_trained"]


def load_trained(directory: Path) -> tuple[RunConfig, Task, nn.Module]:
    """The run in `directory`, with the weights of its best epoch in a model in eval mode."""
    config = _read_config(directory)
    task = _find_task(config)
    tensors, saved = load_state(directory, config)
    best = with_prefix(tensors, "best.")
    try:
        model = make_model(config, task, _length_of(best, config, task), attempt=0)
        check_tensors(best, model.state_dict())
    except ValueError as error:
        raise unusable(directory / CHECKPOINT, error) from error
    model.load_state_dict(best)
    if saved.counters.best_is_hard:
        harden(model)
    return config, task, model.eval()


def _length_of(best: Mapping[str, Tensor], config: RunConfig, task: Task) -> int:
    """The number of positions of the model."""
    positions = best.get("positions")
    if positions is None or positions.dim() == 0:
        return config.length or task.length
    return positions.shape[0]


def _read_config(directory: Path) -> RunConfig:
    for name in (CONFIG, CHECKPOINT):
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory} is not the directory of a run: it has no {name}.")
    advice = "Restore it, or train the run again."
    try:
        config = config_from_dict(read_object(directory / CONFIG, advice))
    except Damaged:
        raise
    except ValueError as error:
        raise damage(directory / CONFIG, error, advice) from error
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
