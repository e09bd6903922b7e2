"""The table of optimisers."""

from collections.abc import Callable

import torch
from torch import nn

from statemix.config.sections import Optimisation
from statemix.optim.groups import parameter_groups
from statemix.optim.muon import Muon

__all__ = ["OPTIMISERS", "make_optimiser"]

_EPS = 1e-8


def _adamw(model: nn.Module, config: Optimisation) -> torch.optim.Optimizer:
    groups = parameter_groups(model, config.weight_decay)
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW(groups, lr=config.lr, betas=betas, eps=_EPS, fused=True)


def _muon(model: nn.Module, config: Optimisation) -> torch.optim.Optimizer:
    groups = parameter_groups(model, config.weight_decay, inner=True)
    for group in groups:
        group["scale"] = config.matrix_lr / config.lr if group["matrices"] else 1.0
    betas = (config.beta1, config.beta2)
    return Muon(groups, lr=config.lr, betas=betas, eps=_EPS, fused=True)


OPTIMISERS: dict[str, Callable[[nn.Module, Optimisation], torch.optim.Optimizer]] = {
    "adamw": _adamw,
    "muon": _muon,
}


def make_optimiser(model: nn.Module, config: Optimisation) -> torch.optim.Optimizer:
    """Build the optimiser that `config` names, for all parameters of `model`."""
    return OPTIMISERS[config.optimiser](model, config)
