"""A recurrence as attention: the block matrix that maps all inputs to all states at once.

    h = Ā v,    Ā[t, s] = A[t] A[t-1] .. A[s+1] diag(a[s])        for s ≤ t, zero above

Every entry is an m × m matrix for each block: diagonal for m = 1, as in attention and diagonal state space models, full for BD-LRU,
and for H-LRU a product of companion matrices, of which the input enters the first row alone.

Ā has T² entries; this is for looking at, and for tests.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statemix.analysis.spectrum import transitions
from statemix.layers import BDLRU, HLRU
from statemix.ops.normalise import find_normaliser


def block_attention(
    A: Float[Tensor, "B T n m m"], a: Float[Tensor, "B T n m"]
) -> Float[Tensor, "B n T T m m"]:
    """Ā of transitions A and input gates a."""
    B, T, n, m = a.shape
    attention = A.new_zeros((B, n, T, T, m, m))
    column = A.new_zeros(
        (B, n, 0, m, m)
    )  # the products that end at the step before, one for each s
    for t in range(T):
        column = torch.cat(
            [A[:, t].unsqueeze(2) @ column, torch.diag_embed(a[:, t]).unsqueeze(2)], 2
        )
        attention[:, :, t, : t + 1] = column
    return attention


def layer_attention(layer: nn.Module, x: Float[Tensor, "B T d"]) -> Float[Tensor, "B n T T m m"]:
    """Ā that a layer applies to its values along `x`."""
    A = transitions(layer, x)
    if isinstance(layer, BDLRU):
        gates = find_normaliser(layer.gate).forward(layer.W_g(x).unflatten(2, layer.gate_shape))
        return block_attention(A, gates[..., -1])
    if isinstance(layer, HLRU):
        gates = find_normaliser(layer.gate).forward(layer.W_g(x).unflatten(2, layer.gate_shape))
        first = torch.zeros_like(A[..., 0])
        first[..., 0] = gates[..., -1]
        return block_attention(A, first)
    raise TypeError(f"Attention matrices are known for BDLRU and HLRU, got {type(layer).__name__}.")


def attend(
    attention: Float[Tensor, "B n T T m m"], v: Float[Tensor, "B T n m"]
) -> Float[Tensor, "B T n m"]:
    """h = Ā v."""
    return torch.einsum("bntsij,bsnj->btni", attention, v)
