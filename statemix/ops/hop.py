"""The paper's higher-order parallel scan: Blelloch's up and down sweep over pairs (A, b), in plain torch.

Two steps in a row are one step,

    (A_l, b_l) • (A_r, b_r) = (A_r A_l,  A_r b_l + b_r),

so a sweep up joins neighbours into half as many pairs, the recursion scans those, which gives h at odd times,
and a sweep down fills in the even ones, h[2i] = A[2i] h[2i-1] + b[2i].  Work is O(T m³), depth O(log T).

It is the scan to compare others with: parallel and compiled by torch, but it moves every A about twice over.
A packed sequence begins by cutting what stands to its left, so nothing, NaN included, leaks into it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops import check
from statemix.ops.block import identity_where_masked, matvec, state_or_zero
from statemix.ops.dispatch.registry import define_op
from statemix.ops.precision import output_dtype, state_dtype, without_autocast
from statemix.ops.segments import (
    Sequences,
    checked_bounds,
    is_first,
    over_time,
    sequence_of,
    zero_where_masked,
)
from statemix.types import BlockMatrices, BlockValues, Mask, SequenceBounds, States


def hop_scan(
    A: BlockMatrices,
    b: BlockValues,
    initial_state: States | None = None,
    *,
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Compute what `block_scan` computes, in O(log T) parallel steps of plain torch."""
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_block_scan("A", A, "b", b, initial_state, sequences)
    if cu_seqlens is not None:
        sequences = sequences._replace(
            cu_seqlens=torch.ops.statemix.checked_bounds(cu_seqlens, b.shape[1])
        )
    h0 = state_or_zero(initial_state, b, b.shape[-1], state_dtype(A, b), sequences)
    with without_autocast(b.device):  # states are float32 under autocast too
        h, final = _scan(A.to(h0.dtype), b.to(h0.dtype), h0, sequences)
    return h.to(output_dtype(A, b)), final


def _scan(A: Tensor, b: Tensor, h0: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    cu_seqlens, mask, reverse = sequences
    T = b.shape[1]
    if reverse:
        packed = cu_seqlens is not None
        h, final = _scan(A.flip(1), b.flip(1), h0.flip(0) if packed else h0, sequences.flipped(T))
        return h.flip(1), final.flip(0) if packed else final
    A, b = identity_where_masked(A, mask), zero_where_masked(b, mask)
    if cu_seqlens is None:
        b = torch.cat([b[:, :1] + matvec(A[:, :1], h0[:, None]), b[:, 1:]], 1)
        h = _padded_sweep(A, b, None)
        return h, h[:, -1].clone() if T else h0
    first = is_first(cu_seqlens, T, reverse=False)[None]
    b = torch.where(over_time(first, b), b + matvec(A, h0[sequence_of(cu_seqlens, T)][None]), b)
    h = _padded_sweep(A, b, first)
    return h, _packed_final(h, h0, cu_seqlens)


def _padded_sweep(A: Tensor, b: Tensor, first: Tensor | None) -> Tensor:
    """`_sweep`; when compiling, over a time axis filled up to a power of two, so that lengths in between share a graph."""
    T = b.shape[1]
    if not torch.compiler.is_compiling() or T == 0:
        return _sweep(A, b, first)
    fixed(b.shape[-1])
    size = 1
    while size < T:
        size *= 2
    first = None if first is None else F.pad(first, (0, size - T))
    return _sweep(
        F.pad(A, (0, 0, 0, 0, 0, 0, 0, size - T)), F.pad(b, (0, 0, 0, 0, 0, size - T)), first
    )[:, :T]


def fixed(size: int) -> int:
    """A size that a graph is compiled for, no symbol: of a symbolic m, inductor (torch 2.13) keeps a stride that it saw first."""
    return len(range(size))


def _sweep(A: Tensor, b: Tensor, first: Tensor | None) -> Tensor:
    """h from zero; `first` marks pairs that hold the first step of a sequence."""
    T = b.shape[1]
    if T <= 1:
        return b
    even, odd, pairs, later = (
        slice(0, None, 2),
        slice(1, None, 2),
        slice(0, T // 2),
        slice(0, (T - 1) // 2),
    )
    A_even, b_even = A[:, even], b[:, even]
    A_left, b_left = A_even[:, pairs], b_even[:, pairs]
    A_right, b_right = A[:, odd], b[:, odd]
    both = None
    if first is not None:
        right = first[:, odd]
        A_left, b_left = zero_where_masked(A_left, ~right), zero_where_masked(b_left, ~right)
        both = first[:, even][:, pairs] | right
    h_odd = _sweep(A_right @ A_left, matvec(A_right, b_left) + b_right, both)
    h_prev = h_odd[:, later]
    if first is not None:
        h_prev = zero_where_masked(h_prev, ~first[:, even][:, 1:])
    h_even = torch.cat([b_even[:, :1], matvec(A_even[:, 1:], h_prev) + b_even[:, 1:]], 1)
    h = torch.stack([h_even[:, pairs], h_odd], 2).flatten(1, 2)
    return torch.cat([h, h_even[:, -1:]], 1) if T % 2 else h


def _packed_final(h: Tensor, h0: Tensor, cu_seqlens: Tensor) -> Tensor:
    if h.shape[1] == 0:
        return h0
    last = (cu_seqlens[1:] - 1).clamp(min=0)
    empty = cu_seqlens[1:] == cu_seqlens[:-1]
    return torch.where(empty[:, None, None], h0, h[0, last])


def _checked_bounds(cu_seqlens: Tensor, T: int) -> Tensor:
    checked_bounds(cu_seqlens, T)
    return cu_seqlens.clone()


# An op, so that compiled code checks the bounds too.
define_op(
    "checked_bounds",
    "(Tensor cu_seqlens, SymInt T) -> Tensor",
    _checked_bounds,
    lambda cu_seqlens, T: torch.empty_like(cu_seqlens),
)
