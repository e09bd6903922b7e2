"""Eigenvalues of the transition matrices that a trained layer applies.

    BD-LRU   A[t], the m × m state gates of a block, after normalisation
    H-LRU    the companion matrix of (a_1[t] .. a_m[t])

With softmax gates a row of A sums to 1 − a_0, so |λ| ≤ 1 − min a_0.
"""

import torch
from jaxtyping import Complex, Float
from torch import Tensor, nn

from statemix.layers import BDLRU, HLRU
from statemix.ops.lags import companion_matrix
from statemix.ops.normalise import find_normaliser


def transitions(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B T n m m"]:
    """The matrices that `layer` applies to its states along `x`."""
    if isinstance(layer, BDLRU):
        rows = layer.W_g(x).unflatten(2, layer.state_shape)
        return find_normaliser(layer.gate).forward(rows)[..., :-1]
    if isinstance(layer, HLRU):
        return companion_matrix(find_normaliser(layer.gate).forward(layer.W_g(x))[..., :-1])
    raise TypeError(f"Transitions are known for BDLRU and HLRU, got {type(layer).__name__}.")


def eigenvalues(matrices: Float[Tensor, "*batch m m"]) -> Complex[Tensor, "*batch m"]:
    """Eigenvalues of each matrix, in float64."""
    return torch.linalg.eigvals(matrices.detach().double())
