"""The weights of one row of raw gates, and the gradient of the row, within one lane.

    w_j = f_j / Z        dg_j = slope_j λ (u_j − pull_j y) / Z,    y = Σ_j w_j u_j

The row's dot product in the Jacobian equals y, so the gradient needs no additional sum. A row is a
tuple of vectors, one per column, and each lane holds one row. With the gate function None, the row
contains coefficients instead of gates: f = g and Z = 1. Hardmax has its own weights (`one_hot`) and
the Jacobian of softmax.
"""

import triton
import triton.language as tl

__all__ = ["numerators", "one_hot", "pull", "slope", "weights"]

RELU_EPSILON: tl.constexpr = tl.constexpr(1e-3)
SIGNED_FLOOR: tl.constexpr = tl.constexpr(1e-3)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def numerators(g, GATE: tl.constexpr):
    """f, 1 / Z, and a mask of signed rows below their floor, where Z is constant."""
    zero = tl.zeros_like(g[0])
    low = zero > 1.0
    if GATE is None or GATE == "none":
        return g, zero + 1.0, low
    elif GATE == "softmax" or GATE == "sigmoid":
        f, total = exponentials(g, GATE)
        return f, 1.0 / total, low
    else:
        f = ()
        total = zero
        for j in tl.static_range(len(g)):
            f_j = function(g[j], GATE)
            f += (f_j,)
            total += f_j + RELU_EPSILON if GATE == "relu" else tl.abs(f_j)
        if GATE != "relu":
            low = total < SIGNED_FLOOR
            total = tl.where(low, zero + SIGNED_FLOOR, total)
        return f, 1.0 / total, low


@triton.jit
def weights(g, GATE: tl.constexpr):
    """Factors whose products are the weights: f and 1 / Z, or f / Z and one for signed functions.

    In a signed row with a single nonzero gate, its weight is exactly one or minus one.
    """
    if GATE == "hardmax":
        return one_hot(g), tl.zeros_like(g[0]) + 1.0
    f, scale, _ = numerators(g, GATE)
    if GATE == "tanh" or GATE == "linear" or GATE == "silu":
        total = tl.zeros_like(scale)
        for j in tl.static_range(len(f)):
            total += tl.abs(f[j])
        w, one = (), tl.zeros_like(scale) + 1.0
        for j in tl.static_range(len(f)):
            alone = (tl.abs(f[j]) == total) & (total >= SIGNED_FLOOR)
            w += (tl.where(alone, tl.where(f[j] > 0, one, -one), f[j] * scale),)
        return w, one
    else:
        return f, scale


@triton.jit
def one_hot(g):
    """One for the largest gate, the first among equals, and zero for all others.

    A row is NaN if its softmax is.
    """
    top = g[0]
    for j in tl.static_range(1, len(g)):
        top = tl.maximum(top, g[j])
    below = g[0] - top
    for j in tl.static_range(1, len(g)):
        below += g[j] - top
    zero = tl.where(below != below, below, tl.zeros_like(top))
    one = zero + 1.0
    free = top == top
    w = ()
    for j in tl.static_range(len(g)):
        w += (tl.where(free & (g[j] == top), one, zero),)
        free = free & (g[j] != top)
    return w


@triton.jit
def exponentials(g, GATE: tl.constexpr):
    """Exponentials of gates (or of their log-sigmoids) minus the row's maximum, and their sum.

    The maximum is subtracted before any multiplication, so that the largest weight of a saturated
    row is exactly one.
    """
    logits = g
    if GATE == "sigmoid":
        logits = ()
        for j in tl.static_range(len(g)):
            logits += (
                tl.where(g[j] > 0, tl.zeros_like(g[j]), g[j])
                - tl.log(1.0 + exponential(-tl.abs(g[j]))),
            )
    top = logits[0]
    for j in tl.static_range(1, len(g)):
        top = tl.maximum(top, logits[j])
    if len(g) == 2:  # one of the two is the maximum, so one exponential suffices
        below = logits[0] - top, logits[1] - top
        other = exponential(below[0] + below[1])
        one = tl.zeros_like(top) + 1.0
        first = below[0] < below[1]
        return (tl.where(first, other, one), tl.where(first, one, other)), 1.0 + other
    else:
        e = ()
        total = tl.zeros_like(top)
        for j in tl.static_range(len(g)):
            e += (exponential(logits[j] - top),)
            total += e[j]
        return e, total


@triton.jit
def exponential(x):
    """e^x, computed with the base-2 exponential of the hardware."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def function(g, GATE: tl.constexpr):
    """f(g) of all gate functions but softmax and sigmoid; NaN is preserved."""
    if GATE == "relu":
        return tl.where(g < 0, tl.zeros_like(g), g)
    elif GATE == "tanh":
        return hyperbolic_tangent(g)
    elif GATE == "silu":
        return g * logistic(g)
    else:
        return g


@triton.jit
def slope(g, f, GATE: tl.constexpr):
    """f'(g), computed from the numerator f where that is cheaper."""
    if GATE == "softmax":
        return f
    elif GATE == "sigmoid":
        return f * logistic(-g)
    elif GATE == "relu":
        return tl.where(g > 0, tl.zeros_like(g) + 1.0, tl.zeros_like(g))
    elif GATE == "tanh":
        return 1.0 - f * f
    elif GATE == "silu":
        s = logistic(g)
        return s * (1.0 + g * (1.0 - s))
    else:
        return tl.zeros_like(g) + 1.0


@triton.jit
def pull(f, low, GATE: tl.constexpr):
    """∂Z/∂f: one, the sign of f, or zero if Z is constant."""
    zero = tl.zeros_like(f)
    if GATE is None or GATE == "none":
        return zero
    elif GATE == "softmax" or GATE == "sigmoid" or GATE == "relu":
        return zero + 1.0
    else:
        return tl.where(low | (f == 0), zero, tl.where(f > 0, zero + 1.0, zero - 1.0))


@triton.jit
def logistic(g):
    """σ(g), computed without overflow."""
    e = exponential(-tl.abs(g))
    return tl.where(g < 0, e, tl.zeros_like(g) + 1.0) / (1.0 + e)


@triton.jit
def hyperbolic_tangent(g):
    """tanh(g), with a polynomial near zero, where (1 − e^−2g) / (1 + e^−2g) loses precision."""
    x = tl.abs(g)
    z = g * g
    p = z * -5.70498872745e-3 + 2.06390887954e-2
    p = p * z - 5.37397155531e-2
    p = p * z + 1.33314422036e-1
    p = p * z - 3.33332819422e-1
    e = exponential(-2.0 * x)
    far = (1.0 - e) / (1.0 + e)
    return tl.where(x < 0.625, p * z * g + g, tl.where(g < 0, -far, far))
