"""Learning rates as functions of the step s.

warm-up     r[s] = lr (s + 1) / w                                                        s < w
cosine      r[s] = min_lr + (lr − min_lr) (1 + cos(π (s − w) / (last − w))) / 2          s ≥ w
decay       r[s] = lr until the decay starts, then min_lr after `decay` steps, linearly
"""

import math

import torch

__all__ = ["set_learning_rate", "warmup_cosine", "warmup_decay"]


def warmup_cosine(step: int, *, lr: float, min_lr: float, warmup: int, last: int) -> float:
    """Linear warm-up, then a cosine from `lr` to `min_lr` at step `last`."""
    if step < warmup:
        return lr * (step + 1) / warmup
    progress = (step - warmup) / max(1, last - warmup)
    return min_lr + (lr - min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def warmup_decay(
    step: int, *, lr: float, min_lr: float, warmup: int, decay_step: int, decay: int
) -> float:
    """Linear warm-up, then `lr`, then a line to `min_lr`; `decay_step` is negative before it."""
    if step < warmup:
        return lr * (step + 1) / warmup
    return lr + (min_lr - lr) * max(0, decay_step) / decay


def set_learning_rate(optimiser: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` in the next step, for all groups."""
    for group in optimiser.param_groups:
        group["lr"] = lr
