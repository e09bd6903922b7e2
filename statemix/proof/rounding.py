"""How far the numbers of a model can be from their exact values, whatever the order of summation.

A sum of n products in floating-point arithmetic with unit roundoff u differs from the exact one
by at most γ(n) times the sum of absolute values, γ(n) = n u / (1 − n u), in any order (Higham,
Accuracy and Stability of Numerical Algorithms, section 3.1). Each function takes values, computed
in float64, with bounds on their errors, and returns the same for its result. Bounds are doubled,
which covers the rounding of the float64 computation and of the bounds themselves. Numbers that may
overflow raise an error, and those that underflow, to zero or gradually, add a tiny constant.
"""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Bounded", "add", "layer_norm", "linear"]

_SAFETY = 2.0
_LARGEST = 2.0**50  # squares of larger numbers may overflow in float32
_TINY = 2.0**-70  # above any product of such a number with one that may underflow


class Bounded(NamedTuple):
    """Values, and bounds on the distance between them and what a model computes."""

    value: Float[Tensor, "*rows d"]
    error: Float[Tensor, "*rows d"]


def gamma(n: int, unit: float) -> float:
    """The relative error of a sum of n products."""
    return n * unit / (1 - n * unit)


def add(x: Bounded, y: Bounded, unit: float) -> Bounded:
    """x + y."""
    total = x.value + y.value
    error = x.error + y.error
    return Bounded(total, error + _SAFETY * unit * (total.abs() + error) + _TINY)


def _check_range(size: Tensor) -> None:
    """Raise an error unless float32 can hold sums and squares of such numbers."""
    if size.numel() and not size.max() <= _LARGEST:
        raise FloatingPointError("Numbers in the model are so large that they may overflow.")


def linear(layer: nn.Linear, x: Bounded, unit: float) -> Bounded:
    """W x + c."""
    W = layer.weight.double()
    c = 0.0 if layer.bias is None else layer.bias.double()
    size = (x.value.abs() + x.error) @ W.abs().T + (0.0 if layer.bias is None else c.abs())
    _check_range(size)
    spread = x.error @ W.abs().T
    terms = W.shape[1] + 2
    rounding = _SAFETY * gamma(terms, unit) * size
    return Bounded(x.value @ W.T + c, spread + rounding + terms * _TINY)


def layer_norm(norm: nn.LayerNorm, x: Bounded, unit: float) -> Bounded:
    """(x − mean) / √(variance + ε) · w + b.

    The bound holds if the variance is known well enough, which is checked.
    """
    n = x.value.shape[-1]
    rounding = _SAFETY * gamma(n + 8, unit)
    size = x.value.abs() + x.error
    _check_range(size)
    centred = x.value - x.value.mean(-1, keepdim=True)
    error = x.error + x.error.mean(-1, keepdim=True) + rounding * (size + size.mean(-1, True))
    variance = centred.square().mean(-1, keepdim=True) + norm.eps
    slack = (2 * centred.abs() * error + error.square()).mean(-1, keepdim=True)
    relative = slack / variance + rounding
    if relative.max() >= 0.25:
        raise FloatingPointError(
            "The variance in a LayerNorm is too small for its rounding error to be bounded."
        )
    scale = variance.rsqrt()
    w = norm.weight.double()
    y = centred * scale * w + norm.bias.double()
    # |1/√(1 + r) − 1| ≤ r for |r| ≤ 1/4
    drift = error * (1 + relative) + centred.abs() * (relative + rounding)
    _check_range(w.abs() + y.abs())
    return Bounded(y, _SAFETY * (drift * scale * w.abs() + rounding * y.abs()) + _TINY)
