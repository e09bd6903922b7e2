"""Sections that configs of tasks and of language models share."""

from dataclasses import dataclass
from typing import Annotated, Literal

from statemix.config.fields import FRACTION, NON_NEGATIVE, POSITIVE

__all__ = ["Fraction", "NonNegative", "Optimisation", "Optimiser", "Rate", "Schedule", "Warmup"]

Optimiser = Literal["adamw", "muon"]
Rate = Annotated[float, POSITIVE]
NonNegative = Annotated[float, NON_NEGATIVE]
Fraction = Annotated[float, FRACTION]
Warmup = Annotated[int | float, NON_NEGATIVE]


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """How the weights are updated."""

    optimiser: Optimiser = "adamw"
    """`adamw`, as in the paper; or `muon` for the matrices inside blocks, with AdamW for everything
    else: far fewer steps to recall, copy or compress."""
    lr: Rate = 3e-3
    """Peak learning rate."""
    matrix_lr: Rate = 0.02
    """Peak learning rate of the matrices that Muon updates."""
    beta1: Fraction = 0.9
    """Decay rate of AdamW's first moment."""
    beta2: Fraction = 0.999
    """Decay rate of AdamW's second moment."""
    weight_decay: NonNegative = 0.0
    """Decoupled weight decay of matrices; biases, norms and initial states have none."""
    clip: NonNegative = 1.0
    """Clip the gradient norm to this value (0: no clipping)."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How the learning rate changes over time."""

    warmup: Warmup = 0
    """Linear warm-up: a number of steps or, below 1, a fraction of all steps."""
    min_lr: Rate = 1e-5
    """Final learning rate."""
    cooldown: Fraction = 0.0
    """Keep the peak learning rate, then decay it linearly over this last fraction of all steps (0:
    use a cosine over all steps)."""

    def warmup_steps(self, total: int) -> int:
        """The number of warm-up steps in a run of `total` steps."""
        return round(self.warmup * total) if self.warmup < 1 else int(self.warmup)
