"""What the demo knows of a model after training."""

from dataclasses import dataclass, field

import numpy as np

from statemix.proof.saved import SavedCertificate

__all__ = ["LENGTHS", "Plane", "Trained"]

LENGTHS = (16, 64, 256, 1024, 4096, 16384)  # the first is that of training


@dataclass(frozen=True)
class Plane:
    """Eigenvalues (T, n m) of the transitions on one sequence, and shares of all of them."""

    values: np.ndarray
    negative: float
    complex: float


@dataclass(frozen=True)
class Trained:
    """A model of the demo: its size, the CPU time of its training, and what it can do."""

    label: str
    states: int
    parameters: int
    cpu_seconds: float
    accuracy: dict[int, float]
    plane: Plane | None = field(repr=False)
    proof: SavedCertificate | None
