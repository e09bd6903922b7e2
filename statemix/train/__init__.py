"""Training on tasks: the problem, the step, the evaluation, and aids such as a curriculum."""

from statemix.config.presets import (
    mad_preset,
    paper_protocol,
    paper_sizes,
    sharpened_preset,
    tracking_preset,
)
from statemix.config.task import RunConfig, config_from_dict
from statemix.train.loop import train
from statemix.train.state import EpochReport, Run, RunResult

__all__ = [
    "EpochReport",
    "Run",
    "RunConfig",
    "RunResult",
    "config_from_dict",
    "mad_preset",
    "paper_protocol",
    "paper_sizes",
    "sharpened_preset",
    "tracking_preset",
    "train",
]
