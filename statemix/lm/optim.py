"""AdamW without decay of biases and norms, and a learning rate that warms up and follows a cosine."""

import math

import torch
from torch import nn

from statemix.lm.config import LMRunConfig


def make_optimiser(model: nn.Module, config: LMRunConfig) -> torch.optim.AdamW:
    """Two groups: matrices, which decay, and the rest."""
    decayed = [p for name, p in model.named_parameters() if decays(name, p)]
    others = [p for name, p in model.named_parameters() if not decays(name, p)]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=(config.beta1, config.beta2), eps=1e-8, fused=True
    )


def decays(name: str, p: nn.Parameter) -> bool:
    """Matrices decay; vectors, and biases of any shape, do not."""
    return p.ndim >= 2 and not name.rpartition(".")[2].startswith(("bias", "h0"))


def learning_rate(config: LMRunConfig, step: int) -> float:
    """Linear from zero in the warm-up, then a cosine from `lr` to `min_lr` at the last step."""
    warmup = round(config.warmup * config.steps)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, config.steps - 1 - warmup)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
