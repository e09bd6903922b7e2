"""A recurrence as attention: the block matrix that maps the inputs of all steps to all states.

    h = Ā v,    Ā[t, s] = A[t] A[t-1] .. A[s+1] diag(a[s])        for s ≤ t, zero above

For each block of the recurrence, every entry is an m × m matrix: a scalar for m = 1, as in
attention and in diagonal state space models; a full matrix for BD-LRU; and for H-LRU a product of
companion matrices, where the input enters the first row only.

Ā has T² entries, so these functions are for plots and tests, not for training.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statemix.analysis.spectrum import transitions
from statemix.layers import BDLRU, HLRU
from statemix.ops.normalise import find_normaliser

__all__ = ["attend", "block_attention", "layer_attention"]


def block_attention(
    A: Float[Tensor, "B T n m m"], a: Float[Tensor, "B T n m"]
) -> Float[Tensor, "B n T T m m"]:
    """Compute Ā from the transitions A and the input gates a."""
    B, T, n, m = a.shape
    attention = A.new_zeros((B, n, T, T, m, m))
    row = A.new_zeros((B, n, 0, m, m))  # Ā[t - 1, s] for all s < t
    for t in range(T):
        entered = torch.diag_embed(a[:, t]).unsqueeze(2)
        row = torch.cat([A[:, t].unsqueeze(2) @ row, entered], 2)
        attention[:, :, t, : t + 1] = row
    return attention


def layer_attention(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B n T T m m"]:
    """Compute the Ā that `layer` applies to its values v for the input `x`."""
    A = transitions(layer, x)
    if isinstance(layer, BDLRU):
        gates = find_normaliser(layer.gate).forward(layer.W_g(x).unflatten(2, layer.gate_shape))
        return block_attention(A, gates[..., -1])
    if isinstance(layer, HLRU):
        gates = find_normaliser(layer.gate).forward(layer.W_g(x).unflatten(2, layer.gate_shape))
        first = torch.zeros_like(A[..., 0])
        first[..., 0] = gates[..., -1]
        return block_attention(A, first)
    raise TypeError(f"`layer` must be a BDLRU or an HLRU, got {type(layer).__name__}.")


def attend(
    attention: Float[Tensor, "B n T T m m"], v: Float[Tensor, "B T n m"]
) -> Float[Tensor, "B T n m"]:
    """h = Ā v."""
    return torch.einsum("bntsij,bsnj->btni", attention, v)
