"""The block-diagonal linear recurrence, and its adjoint.

    h[t] = A[t] h[t-1] + b[t],    h[-1] = h0,    t = 0 .. T-1

States are column vectors: A[..., i, j] carries h[j] into h[i]. The gradient k[t] of the loss with
respect to the state before step t obeys the same recurrence, transposed and reversed in time,

    k[t] = A[t]ᵀ k[t+1] + A[t]ᵀ dh[t],    k[T] = dh_final,
    g[t] = dh[t] + k[t+1],
    dA[t] = g[t] h[t-1]ᵀ,    db[t] = g[t],    dh0 = k[0],

so the adjoint is a `block_scan` too, and is therefore differentiable to any order.
A masked step is the identity, A = I and b = 0, for the state and for the gradient.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.ops import check
from statemix.ops.dispatch.registry import Gradients, Pair, define_scan
from statemix.ops.loop import run_loop
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences, over_time, previous, zero_where_masked
from statemix.types import BlockMatrices, BlockValues, Mask, SequenceBounds, States

__all__ = [
    "SCAN",
    "block_scan",
    "block_step",
    "identity_where_masked",
    "matvec",
    "state_or_zero",
]


def block_scan(
    A: BlockMatrices,
    b: BlockValues,
    initial_state: States | None = None,
    *,
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Compute h[t] = A[t] h[t-1] + b[t]; return h and the final state of each sequence.

    Args:
        initial_state: h before the first step, zero if None.
        cu_seqlens: bounds of N sequences packed into a batch of one; there are then N states.
        mask: True at real steps; other steps leave the state unchanged.
        reverse: run from the last step to the first; the initial state is that after the last step.
    """
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_block_scan("A", A, "b", b, initial_state, sequences)
    return SCAN(A, b, initial_state, sequences)


def block_step(
    A_t: Float[Tensor, "*batch m m"],
    b_t: Float[Tensor, "*batch m"],
    h: Float[Tensor, "*batch m"] | None,
) -> Float[Tensor, "*batch m"]:
    """Return A[t] h + b[t], or b[t] if `h` is None, in plain torch; decoding uses it."""
    dtype = state_dtype(A_t, b_t)
    if h is None:
        return b_t.to(dtype, copy=True)
    return matvec(A_t.to(dtype), h.to(dtype)) + b_t.to(dtype)


def matvec(
    A: Float[Tensor, "*#batch i j"], x: Float[Tensor, "*#batch j"]
) -> Float[Tensor, "*batch i"]:
    """A x for a batch of small matrices, in full precision whatever torch's matmul settings."""
    return (A * x.unsqueeze(-2)).sum(-1)


def state_or_zero(
    h0: Tensor | None, like: Tensor, m: int, dtype: torch.dtype, sequences: Sequences
) -> Tensor:
    """A new (S, n, m) state in `dtype`: a copy of `h0`, or zeros."""
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
    # The derivative of the loop would multiply a NaN at a masked step by zero.
    inputs = [zero_where_masked(x, sequences.mask) for x in (A, b)]
    h, final = run_loop(_step, inputs, state, b, sequences)
    return h.to(output_dtype(A, b)), final


def _adjoint(
    dh: Tensor, dh_final: Tensor, A: Tensor, h: Tensor, h0: Tensor | None, sequences: Sequences
) -> Gradients:
    mask = sequences.mask
    dtype = state_dtype(A, h)
    A = identity_where_masked(A.to(dtype), mask)
    h, dh, dh_final = (x.to(dtype) for x in (h, dh, dh_final))
    h0 = state_or_zero(h0, h, h.shape[-1], dtype, sequences)
    back = sequences.unmasked().backwards()
    k, dh0 = SCAN(A.mT, matvec(A.mT, dh), dh_final, back)
    g = zero_where_masked(dh + previous(k, dh_final, back), mask)
    dA = g.unsqueeze(-1) * previous(h, h0, sequences).unsqueeze(-2)
    return zero_where_masked(dA, mask).contiguous(), g.contiguous(), dh0


SCAN = define_scan("block_scan", _scan, _adjoint, differentiable_adjoint=_adjoint)
