"""Training on tasks: the problem, the step, the evaluation, and aids such as a curriculum."""

from statemix.config.task import (
    RunConfig,
    automaton_preset,
    config_from_dict,
    mad_preset,
    paper_protocol,
    paper_sizes,
    tracking_preset,
)
from statemix.train.loop import train
from statemix.train.state import EpochReport, Run, RunResult

__all__ = [
    "EpochReport",
    "Run",
    "RunConfig",
    "RunResult",
    "automaton_preset",
    "config_from_dict",
    "mad_preset",
    "paper_protocol",
    "paper_sizes",
    "tracking_preset",
    "train",
]
