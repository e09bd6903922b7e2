"""AdamW without decay of biases and norms, or Muon, and a learning rate that warms up and follows a cosine."""

import math
from typing import Any

import torch
from torch import nn

from statemix.lm.config import LMRunConfig
from statemix.train.muon import Muon, decays, is_inner_matrix


def make_optimiser(model: nn.Module, config: LMRunConfig) -> torch.optim.Optimizer:
    """Groups: matrices, which decay; the rest; and, for Muon, the matrices inside blocks by themselves."""
    with_muon = config.optimiser == "muon"
    inner = [p for name, p in model.named_parameters() if with_muon and is_inner_matrix(name, p)]
    decayed = [
        p
        for name, p in model.named_parameters()
        if decays(name, p) and not (with_muon and is_inner_matrix(name, p))
    ]
    others = [p for name, p in model.named_parameters() if not decays(name, p)]
    groups: list[dict[str, Any]] = [
        {
            "params": inner,
            "weight_decay": config.weight_decay,
            "matrices": True,
            "scale": config.matrix_lr / config.lr,
        },
        {"params": decayed, "weight_decay": config.weight_decay, "matrices": False},
        {"params": others, "weight_decay": 0.0, "matrices": False},
    ]
    kind = Muon if with_muon else torch.optim.AdamW
    used = [group for group in groups if group["params"]]
    return kind(used, lr=config.lr, betas=(config.beta1, config.beta2), eps=1e-8, fused=True)


def learning_rate(config: LMRunConfig, step: int) -> float:
    """Linear from zero in the warm-up, then a cosine from `lr` to `min_lr` at the last step."""
    warmup = round(config.warmup * config.steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, config.steps - 1 - warmup)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (
        1 + math.cos(math.pi * min(1.0, progress))
    )
