"""Optimisers, parameter groups and learning-rate schedules, for tasks and language models alike."""

from statemix.optim.groups import decays, is_inner_matrix, parameter_groups
from statemix.optim.muon import Muon, orthogonal
from statemix.optim.optimisers import OPTIMISERS, make_optimiser
from statemix.optim.schedules import (
    scheduled_rate,
    set_learning_rate,
    warmup_cosine,
    warmup_decay,
)
from statemix.optim.state import load_moments, named_moments

__all__ = [
    "OPTIMISERS",
    "Muon",
    "decays",
    "is_inner_matrix",
    "load_moments",
    "make_optimiser",
    "named_moments",
    "orthogonal",
    "parameter_groups",
    "scheduled_rate",
    "set_learning_rate",
    "warmup_cosine",
    "warmup_decay",
]
