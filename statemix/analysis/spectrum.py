"""Eigenvalues of the transition matrices that a trained layer applies.

    BD-LRU   A[t], the m × m state gates of a block, after normalisation
    H-LRU    the companion matrix of (a_1[t] .. a_m[t])

With softmax gates a row of a BD-LRU's A sums to 1 − a_0, so |λ| ≤ 1 − a_0 of the row where that is largest.  The paper has the same
bound for an H-LRU, where it does not hold: a = (0, 0.81) with a_0 = 0.19 has λ = ±0.9.  There λᵐ = Σ a_i λᵐ⁻ⁱ, and |λ| ≤ 1 gives

    |λ|ᵐ ≤ Σ |a_i| = 1 − a_0,

which that example attains.  For m = 2 there is a closed form,

    λ = (p + s ± √((p − s)² + 4 q r)) / 2        of ((p, q), (r, s)),

real where q r ≥ 0, as it is for gates that are not negative: two states can flip a sign, and it takes three to turn by an angle.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from statemix.layers import BDLRU, HLRU
from statemix.ops.lags import companion_matrix
from statemix.ops.normalise import find_normaliser

TINY = 1e-3  # below it a part of an eigenvalue counts as zero


def transitions(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T n m m"]:
    """The matrices that `layer` applies to its states along `x`."""
    if isinstance(layer, BDLRU):
        rows = layer.W_g(x).unflatten(2, layer.gate_shape)
        return find_normaliser(layer.gate).forward(rows)[..., :-1]
    if isinstance(layer, HLRU):
        rows = layer.W_g(x).unflatten(2, layer.gate_shape)
        return companion_matrix(find_normaliser(layer.gate).forward(rows)[..., :-1])
    raise TypeError(f"Transitions are known for BDLRU and HLRU, got {type(layer).__name__}.")


def eigenvalues(matrices: Float[Tensor, "*batch m m"]) -> Complex[Tensor, "*batch m"]:
    """Eigenvalues of each matrix, in float64."""
    return torch.linalg.eigvals(matrices.detach().double())


def eigenvalues_of_two(matrices: Float[Tensor, "*batch 2 2"]) -> Complex[Tensor, "*batch 2"]:
    """The closed form for m = 2, the larger real part first."""
    (p, q), (r, s) = (row.unbind(-1) for row in matrices.detach().double().unbind(-2))
    root = torch.sqrt(((p - s) ** 2 + 4 * q * r).to(torch.complex128))
    return torch.stack([(p + s + root) / 2, (p + s - root) / 2], -1)


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues along data, and what they say."""

    values: Complex[Tensor, "*batch m"]

    @property
    def radii(self) -> Tensor:
        return self.values.abs()

    @property
    def angles(self) -> Tensor:
        """In (−π, π]: 0 keeps, π flips, anything else turns."""
        return self.values.angle()

    @property
    def negative(self) -> float:
        """The share of eigenvalues that are real and below zero."""
        return (
            ((self.values.real < -TINY) & (self.values.imag.abs() <= TINY)).double().mean().item()
        )

    @property
    def complex(self) -> float:
        """The share of eigenvalues with an imaginary part."""
        return (self.values.imag.abs() > TINY).double().mean().item()


def radius_bound(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T n"]:
    """What no eigenvalue of a block, or channel, exceeds: the largest L1 norm of a row of A, or the m-th root of 1 − a_0."""
    norms = transitions(layer, x).detach().abs().sum(-1)
    if isinstance(layer, HLRU):
        total = norms[..., 0]  # the row of gates; the others shift
        return torch.where(total <= 1, total ** (1 / layer.state_shape[1]), total)
    return norms.amax(-1)
