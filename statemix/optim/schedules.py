"""Learning rates as functions of the step s.

warm-up     r[s] = lr (s + 1) / w                                                        s < w
cosine      r[s] = min_lr + (lr − min_lr) (1 + cos(π (s − w) / (last − w))) / 2          s ≥ w
decay       r[s] = lr until the decay starts, then min_lr after `decay` steps, linearly

A run uses the cosine or, with `cooldown`, the decay over that last fraction of its steps.
"""

import math

import torch

from statemix.config.sections import Schedule

__all__ = ["scheduled_rate", "set_learning_rate", "warmup_cosine", "warmup_decay"]


def scheduled_rate(schedule: Schedule, lr: float, step: int, total: int, last: int) -> float:
    """The learning rate of a step among `total` steps; it is `min_lr` at the step `last`."""
    warmup = schedule.warmup_steps(total)
    if not schedule.cooldown:
        return warmup_cosine(step, lr=lr, min_lr=schedule.min_lr, warmup=warmup, last=last)
    decay = max(1, round(schedule.cooldown * total))
    return warmup_decay(
        step,
        lr=lr,
        min_lr=schedule.min_lr,
        warmup=warmup,
        decay_step=step - (last - decay),
        decay=decay,
    )


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
