"""The paper's higher-order parallel scan: Blelloch's algorithm on pairs (A, b), in plain torch.

Two consecutive steps compose into one step,

    (A_l, b_l) • (A_r, b_r) = (A_r A_l,  A_r b_l + b_r),

so the up-sweep combines neighbours into half as many pairs, the recursion scans these, which gives
h at odd times, and the down-sweep computes the even times, h[2i] = A[2i] h[2i-1] + b[2i]. The work
is O(T m³), and the depth O(log T).

This scan is a baseline: it is parallel and compiled by torch, but moves every A about twice. At the
first step of a packed sequence, everything to its left is replaced by zero, so that no value of the
previous sequence, NaN included, enters.
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

__all__ = ["hop_scan"]


def hop_scan(
    A: BlockMatrices,
    b: BlockValues,
    initial_state: States | None = None,
    *,
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Compute `block_scan` in O(log T) parallel steps of plain torch."""
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_block_scan("A", A, "b", b, initial_state, sequences)
    if cu_seqlens is not None:
        sequences = sequences._replace(
            cu_seqlens=torch.ops.statemix.checked_bounds(cu_seqlens, b.shape[1])
        )
    h0 = state_or_zero(initial_state, b, b.shape[-1], state_dtype(A, b), sequences)
    with without_autocast(b.device):  # states stay float32 under autocast
        h, final = _scan(A.to(h0.dtype), b.to(h0.dtype), h0, sequences)
    return h.to(output_dtype(A, b)), final


def _scan(A: Tensor, b: Tensor, h0: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    cu_seqlens, mask, reverse = sequences
    T = b.shape[1]
    if reverse:
        packed = cu_seqlens is not None
        h, final = _scan(A.flip(1), b.flip(1), h0.flip(0) if packed else h0, sequences.flipped(T))
        return h.flip(1), final.flip(0) if packed else final
    A = identity_where_masked(A, mask)
    b = zero_where_masked(b, mask)
    if cu_seqlens is None:
        b = torch.cat([b[:, :1] + matvec(A[:, :1], h0[:, None]), b[:, 1:]], 1)
        h = _padded_sweep(A, b, None)
        return h, h[:, -1].clone() if T else h0
    first = is_first(cu_seqlens, T, reverse=False)[None]
    b = torch.where(over_time(first, b), b + matvec(A, h0[sequence_of(cu_seqlens, T)][None]), b)
    h = _padded_sweep(A, b, ~first)
    return h, _packed_final(h, h0, cu_seqlens)


def _padded_sweep(A: Tensor, b: Tensor, linked: Tensor | None) -> Tensor:
    """Run `_sweep`; under torch.compile, pad T to a power of two, so that lengths share a graph."""
    T = b.shape[1]
    if not torch.compiler.is_compiling() or T == 0:
        return _sweep(A, b, linked)
    _fixed(b.shape[-1])
    size = 1
    while size < T:
        size *= 2
    A = F.pad(A, (0, 0, 0, 0, 0, 0, 0, size - T))
    b = F.pad(b, (0, 0, 0, 0, 0, size - T))
    linked = None if linked is None else F.pad(linked, (0, size - T), value=True)
    return _sweep(A, b, linked)[:, :T]


def _fixed(size: int) -> int:
    """Specialise a compiled graph to `size`.

    With a symbolic m, inductor (torch 2.13) keeps the stride of the first m that it has seen.
    """
    return len(range(size))


def _sweep(A: Tensor, b: Tensor, linked: Tensor | None) -> Tensor:
    """h from zero; `linked` is False at pairs that contain the first step of a sequence."""
    T = b.shape[1]
    if T <= 1:
        return b
    A_even = A[:, ::2]
    b_even = b[:, ::2]
    A_right = A[:, 1::2]
    right = None if linked is None else linked[:, 1::2]
    both = None if linked is None else linked[:, :-1:2] & linked[:, 1::2]
    A_left = zero_where_masked(A[:, :-1:2], right)
    b_left = zero_where_masked(b[:, :-1:2], right)
    h_odd = _sweep(A_right @ A_left, matvec(A_right, b_left) + b[:, 1::2], both)
    even = None if linked is None else linked[:, 2::2]
    h_prev = zero_where_masked(h_odd[:, : (T - 1) // 2], even)
    h_even = torch.cat([b_even[:, :1], matvec(A_even[:, 1:], h_prev) + b_even[:, 1:]], 1)
    h = torch.stack([h_even[:, : T // 2], h_odd], 2).flatten(1, 2)
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


# An op, so that compiled code also checks the bounds.
define_op(
    "checked_bounds",
    "(Tensor cu_seqlens, SymInt T) -> Tensor",
    _checked_bounds,
    lambda cu_seqlens, T: torch.empty_like(cu_seqlens),
)
