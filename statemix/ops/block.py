"""The block-diagonal linear recurrence, and its adjoint.

    h[t] = A[t] h[t-1] + b[t],    h[-1] = h0,    t = 0 .. T-1

States are column vectors: A[..., i, j] carries h[j] into h[i].  The gradient k of the loss with
respect to the state that enters a step obeys the same recurrence, transposed and run backwards in time,

    k[t] = A[t]ᵀ k[t+1] + A[t]ᵀ dh[t],    k[T] = dh_final,
    g[t] = dh[t] + k[t+1],
    dA[t] = g[t] h[t-1]ᵀ,    db[t] = g[t],    dh0 = k[0],

so the adjoint is one more `block_scan`, and being one it is differentiable again, to any order.
A masked step is the identity, A = I and b = 0: it hands its state on, and the gradient back.
"""

import torch
from torch import Tensor

from statemix.ops import check
from statemix.ops.dispatch.registry import Gradients, Pair, define_scan
from statemix.ops.loop import run_loop
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences, over_time, previous, zero_where_masked
from statemix.types import BlockMatrices, BlockValues, Mask, SequenceBounds, States


def block_scan(
    A: BlockMatrices,
    b: BlockValues,
    initial_state: States | None = None,
    *,
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Scan h[t] = A[t] h[t-1] + b[t]; return every h and the final state of each sequence.

    Args:
        initial_state: h before the first step, zero if None.
        cu_seqlens: bounds of N sequences packed into a batch of one; there are then N states.
        mask: True at real steps; any other step leaves the state as it is.
        reverse: run from the last step to the first; states enter at the end and leave at the start.
    """
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_block_scan("A", A, "b", b, initial_state, sequences)
    return SCAN(A, b, initial_state, sequences)


def block_step(A_t: Tensor, b_t: Tensor, h: Tensor | None) -> Tensor:
    """One step, h = A[t] h + b[t], from zero if `h` is None, in plain torch: what decoding needs, without the cost of an op."""
    dtype = state_dtype(A_t, b_t)
    return (
        b_t.to(dtype, copy=True)
        if h is None
        else matvec(A_t.to(dtype), h.to(dtype)) + b_t.to(dtype)
    )


def matvec(A: Tensor, x: Tensor) -> Tensor:
    """A x for each of many small matrices, in full precision whatever torch's matmul settings."""
    return (A * x.unsqueeze(-2)).sum(-1)


def state_or_zero(
    h0: Tensor | None, like: Tensor, m: int, dtype: torch.dtype, sequences: Sequences
) -> Tensor:
    """A fresh (S, n, m) state in `dtype`: a copy of `h0`, or zeros."""
    if h0 is not None:
        return h0.to(dtype, copy=True)
    return like.new_zeros((sequences.count(like), like.shape[2], m), dtype=dtype)


def identity_where_masked(A: Tensor, mask: Tensor | None) -> Tensor:
    """`A` with the identity at masked steps."""
    if mask is None:
        return A
    return torch.where(
        over_time(mask, A), A, torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    )


def _step(h: Tensor, A_t: Tensor, b_t: Tensor, mask_t: Tensor | None) -> Pair:
    moved = block_step(A_t.to(h.dtype), b_t, h)
    h = moved if mask_t is None else torch.where(mask_t[:, None, None], moved, h)
    return h, h


def _scan(A: Tensor, b: Tensor, h0: Tensor | None, sequences: Sequences) -> Pair:
    state = state_or_zero(h0, b, b.shape[-1], state_dtype(A, b), sequences)
    inputs = [
        zero_where_masked(x, sequences.mask) for x in (A, b)
    ]  # a derivative of the loop would multiply NaN by zero
    h, final = run_loop(_step, inputs, state, b, sequences)
    return h.to(output_dtype(A, b)), final


def _adjoint(
    dh: Tensor, dh_final: Tensor, A: Tensor, h: Tensor, h0: Tensor | None, sequences: Sequences
) -> Gradients:
    dtype, mask = state_dtype(A, h), sequences.mask
    A, h, dh, dh_final = (
        identity_where_masked(A.to(dtype), mask),
        h.to(dtype),
        dh.to(dtype),
        dh_final.to(dtype),
    )
    h0 = state_or_zero(h0, h, h.shape[-1], dtype, sequences)
    back = sequences.unmasked().backwards()
    k, dh0 = SCAN(A.mT, matvec(A.mT, dh), dh_final, back)
    g = zero_where_masked(dh + previous(k, dh_final, back), mask)
    dA = g.unsqueeze(-1) * previous(h, h0, sequences).unsqueeze(-2)
    return zero_where_masked(dA, mask).contiguous(), g.contiguous(), dh0


SCAN = define_scan("block_scan", _scan, _adjoint, differentiable_adjoint=_adjoint)
