"""Training: configs, the loop, metrics and checkpoints."""

from statemix.train.config import RunConfig, config_from_dict, paper_protocol, tracking_preset
from statemix.train.loop import train
from statemix.train.state import EpochReport, Run, RunResult

__all__ = [
    "EpochReport",
    "Run",
    "RunConfig",
    "RunResult",
    "config_from_dict",
    "paper_protocol",
    "tracking_preset",
    "train",
]
