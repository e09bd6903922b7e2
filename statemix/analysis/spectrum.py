"""Eigenvalues of the transition matrices that a trained layer applies.

    BD-LRU   A[t], the m × m state gates of a block, after normalisation
    H-LRU    the companion matrix of (a_1[t] .. a_m[t])

With softmax gates each row of the A of a BD-LRU sums to 1 − a_0, so |λ| is at most the largest of
these sums. The paper states the same bound for an H-LRU, where it does not hold: a = (0, 0.81) with
a_0 = 0.19 has λ = ±0.9. There λᵐ = Σ a_i λᵐ⁻ⁱ, and |λ| ≤ 1 gives

    |λ|ᵐ ≤ Σ |a_i| = 1 − a_0,

with equality in this example. For m = 2 there is a closed form,

    λ = (p + s ± √((p − s)² + 4 q r)) / 2        of ((p, q), (r, s)),

which is real if q r ≥ 0. This holds for non-negative gates, so a block of two states can flip a
sign, but a rotation needs three.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from statemix.layers import BDLRU, HLRU
from statemix.ops.lags import companion_matrix
from statemix.ops.normalise import find_normaliser

__all__ = ["Spectrum", "eigenvalues", "eigenvalues_of_two", "radius_bound", "transitions"]

TINY = 1e-3  # a real or imaginary part below this counts as zero


def transitions(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T n m m"]:
    """Compute the matrices that `layer` applies to its states at each step of `x`."""
    if isinstance(layer, BDLRU):
        rows = layer.W_g(x).unflatten(2, layer.gate_shape)
        return find_normaliser(layer.gate).forward(rows)[..., :-1]
    if isinstance(layer, HLRU):
        rows = layer.W_g(x).unflatten(2, layer.gate_shape)
        return companion_matrix(find_normaliser(layer.gate).forward(rows)[..., :-1])
    raise TypeError(f"`layer` must be a BDLRU or an HLRU, got {type(layer).__name__}.")


def eigenvalues(matrices: Float[Tensor, "*batch m m"]) -> Complex[Tensor, "*batch m"]:
    """Compute the eigenvalues of each matrix in float64."""
    return torch.linalg.eigvals(matrices.detach().double())


def eigenvalues_of_two(matrices: Float[Tensor, "*batch 2 2"]) -> Complex[Tensor, "*batch 2"]:
    """Compute the eigenvalues for m = 2 in closed form, with the larger real part first."""
    (p, q), (r, s) = (row.unbind(-1) for row in matrices.detach().double().unbind(-2))
    root = torch.sqrt(((p - s) ** 2 + 4 * q * r).to(torch.complex128))
    return torch.stack([(p + s + root) / 2, (p + s - root) / 2], -1)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of a layer's transitions on some input, with summary statistics."""

    values: Complex[Tensor, "*batch m"]

    @property
    def radii(self) -> Float[Tensor, "*batch m"]:
        """Absolute values."""
        return self.values.abs()

    @property
    def angles(self) -> Float[Tensor, "*batch m"]:
        """Angles in (−π, π]: 0 keeps the sign, π flips it, and any other angle is a rotation."""
        return self.values.angle()

    @property
    def negative(self) -> float:
        """Share of eigenvalues that are real and negative."""
        real = self.values.imag.abs() <= TINY
        return (real & (self.values.real < -TINY)).double().mean().item()

    @property
    def complex(self) -> float:
        """Share of eigenvalues with a non-zero imaginary part."""
        return (self.values.imag.abs() > TINY).double().mean().item()


def radius_bound(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T n"]:
    """Bound the absolute eigenvalues of each block (BD-LRU) or channel (H-LRU).

    The bound is the largest L1 norm of a row of A for a BD-LRU and the m-th root of 1 − a_0 for an
    H-LRU.
    """
    norms = transitions(layer, x).detach().abs().sum(-1)
    if isinstance(layer, HLRU):
        total = norms[..., 0]  # the first row holds the gates; the other rows shift
        return torch.where(total <= 1, total ** (1 / layer.state_shape[1]), total)
    return norms.amax(-1)
