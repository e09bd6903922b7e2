"""The companion state: the last m outputs of a channel, newest first, at every step.

    s[t] = (h[t], h[t-1], ..., h[t-m+1]),    s[-1] = s0
    s[t] = C(a[t]) s[t-1] + b[t] e_1

The companion matrix C(a) has a in its first row and shifts the other entries. Lags count the real
steps of the same sequence: they skip masked steps, and reach into s0 at the start of the sequence.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.ops.segments import Sequences, sequence_of
from statemix.types import ChannelValues, Coefficients, States

__all__ = ["companion_matrix", "first_entry", "lagged"]


def companion_matrix(a: Float[Tensor, "*batch m"]) -> Float[Tensor, "*batch m m"]:
    """C(a): (a_1 .. a_m) in the first row, ones below the diagonal."""
    m = a.shape[-1]
    shift = torch.eye(m, dtype=a.dtype, device=a.device)[:-1].expand(*a.shape[:-1], m - 1, m)
    return torch.cat([a.unsqueeze(-2), shift], -2)


def first_entry(x: Float[Tensor, "*batch"], m: int) -> Float[Tensor, "*batch m"]:
    """x e_1: a vector with m entries, x followed by zeros."""
    return torch.cat([x.unsqueeze(-1), x.new_zeros((*x.shape, m - 1))], -1)


def lagged(h: ChannelValues, s0: States, sequences: Sequences) -> Coefficients:
    """s at every step, from the outputs h and the initial states s0."""
    if sequences.reverse:
        s0 = s0 if sequences.cu_seqlens is None else s0.flip(0)
        return lagged(h.flip(1), s0, sequences.flipped(h.shape[1])).flip(1)
    if sequences.cu_seqlens is None and sequences.mask is None:
        return _windows(h, s0)
    return _gathered(h, s0, sequences)


def _windows(h: Tensor, s0: Tensor) -> Tensor:
    T = h.shape[1]
    m = s0.shape[-1]
    history = torch.cat([s0.flip(-1).transpose(1, 2).to(h.dtype), h], 1)
    return torch.stack([history.narrow(1, m - lag, T) for lag in range(m)], -1)


def _gathered(h: Tensor, s0: Tensor, sequences: Sequences) -> Tensor:
    B, T, n = h.shape
    m = s0.shape[-1]
    cu_seqlens, mask, _ = sequences
    real = torch.ones((B, T), dtype=torch.bool, device=h.device) if mask is None else mask
    count = real.cumsum(1)
    rank = count - _count_before(count, cu_seqlens)
    lag = torch.arange(m, device=h.device)

    # position[k] is the index of the k-th real step. Lag j of a step is the j-th real step before
    # the last real step up to it.
    position = torch.argsort((~real).byte(), dim=1, stable=True)
    step = position.gather(1, (count.unsqueeze(-1) - 1 - lag).clamp(min=0).flatten(1))
    outputs = h.gather(1, step.unsqueeze(-1).expand(B, T * m, n)).view(B, T, m, n).transpose(2, 3)

    start = s0.unsqueeze(1) if cu_seqlens is None else s0[sequence_of(cu_seqlens, T)].unsqueeze(0)
    older = (lag - rank.unsqueeze(-1)).clamp(min=0).unsqueeze(2).expand(B, T, n, m)
    states = start.expand(B, T, n, m).gather(-1, older).to(h.dtype)
    return torch.where((lag < rank.unsqueeze(-1)).unsqueeze(2), outputs, states)


def _count_before(count: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """For each step, the number of real steps before the start of its sequence."""
    if cu_seqlens is None:
        return torch.zeros((), dtype=count.dtype, device=count.device)
    so_far = torch.cat([count.new_zeros((1, 1)), count], 1)
    return so_far[:, cu_seqlens[sequence_of(cu_seqlens, count.shape[1])]]
