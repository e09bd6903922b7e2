"""The higher-order linear recurrence, and its adjoint.

    h[t] = Σ_i a_i[t] h[t-i] + b[t],    i = 1 .. m,    (h[-1], ..., h[-m]) = h0

The state is the last m outputs, newest first. The adjoint recurrence also costs O(m) per step. With
k[t] the gradient of the loss with respect to the state before step t,

    λ[t] = dh[t] + k_1[t+1],
    k_i[t] = a_i[t] λ[t] + k_{i+1}[t+1],    k_{m+1} = 0,    k[T] = dh_final,
    da_i[t] = λ[t] h[t-i],    db[t] = λ[t],    dh0 = k[0].

This is the controller form, which the paper uses. The observer form transposes the companion
matrix,

    s_i[t] = a_i[t] s_1[t-1] + s_{i+1}[t-1],    plus b[t] at i = 1,    h[t] = s_1[t],

which is a different recurrence for m ≥ 2: its states can exceed every input even if rows sum to
one. It is provided so that weights trained in that form can be evaluated.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.ops import block, check
from statemix.ops.block import state_or_zero
from statemix.ops.dispatch.registry import Gradients, Pair, define_scan
from statemix.ops.lags import companion_matrix, first_entry, lagged
from statemix.ops.loop import run_loop
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences, previous, zero_where_masked
from statemix.types import ChannelValues, Coefficients, Mask, SequenceBounds, States

__all__ = ["FORMS", "SCAN", "companion_scan", "companion_step", "observer_scan"]

FORMS = ("controller", "observer")


def companion_scan(
    a: Coefficients,
    b: ChannelValues,
    initial_state: States | None = None,
    *,
    form: str = "controller",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[ChannelValues, States]:
    """Compute h[t] = Σ_i a_i[t] h[t-i] + b[t]; return h and the final state of each sequence.

    Args:
        initial_state: the m outputs before the first step, newest first, zero if None.
        form: "controller" for this recurrence, "observer" for its transpose, whose state is s.
        cu_seqlens: bounds of N sequences packed into a batch of one; there are then N states.
        mask: True at real steps; other steps leave the state unchanged.
        reverse: run from the last step to the first; the initial state is that after the last step.
    """
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_companion_scan("a", a, "b", b, initial_state, sequences)
    check.check_choice("form", form, FORMS)
    if form == "observer":
        s, final = observer_scan(a, b, initial_state, sequences)
        return s[..., 0], final
    return SCAN(a, b, initial_state, sequences)


def observer_scan(a: Tensor, b: Tensor, initial_state: Tensor | None, sequences: Sequences) -> Pair:
    """The observer form, with the full state s (B T n m) at every step."""
    return block.SCAN(companion_matrix(a).mT, first_entry(b, a.shape[-1]), initial_state, sequences)


def companion_step(
    a_t: Float[Tensor, "*batch m"],
    b_t: Float[Tensor, "*batch"],
    s: Float[Tensor, "*batch m"] | None,
) -> Float[Tensor, "*batch m"]:
    """Return the state after one step of the controller form, from zero if `s` is None."""
    dtype = state_dtype(a_t, b_t)
    s = torch.zeros_like(a_t, dtype=dtype) if s is None else s.to(dtype)
    h_t = (a_t.to(dtype) * s).sum(-1, keepdim=True) + b_t.to(dtype).unsqueeze(-1)
    return torch.cat([h_t, s[..., :-1]], -1)


def _step(s: Tensor, a_t: Tensor, b_t: Tensor, mask_t: Tensor | None) -> Pair:
    moved = companion_step(a_t.to(s.dtype), b_t, s)
    s = moved if mask_t is None else torch.where(mask_t[:, None, None], moved, s)
    return s, s[..., 0]


def _scan(a: Tensor, b: Tensor, h0: Tensor | None, sequences: Sequences) -> Pair:
    state = state_or_zero(h0, b, a.shape[-1], state_dtype(a, b), sequences)
    # The derivative of the loop would multiply a NaN at a masked step by zero.
    inputs = [zero_where_masked(x, sequences.mask) for x in (a, b)]
    h, final = run_loop(_step, inputs, state, b, sequences)
    return h.to(output_dtype(a, b)), final


def _adjoint_step(k: Tensor, a_t: Tensor, dh_t: Tensor, mask_t: Tensor | None) -> Pair:
    lambda_t = k[..., :1] + dh_t.unsqueeze(-1)
    older = k[..., 1:]
    moved = a_t.to(k.dtype) * lambda_t + torch.cat([older, torch.zeros_like(lambda_t)], -1)
    if mask_t is not None:
        moved = torch.where(mask_t[:, None, None], moved, torch.cat([lambda_t, older], -1))
    return moved, lambda_t[..., 0]


def _adjoint(
    dh: Tensor, dh_final: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, sequences: Sequences
) -> Gradients:
    dtype = state_dtype(a, h)
    h = h.to(dtype)
    h0 = state_or_zero(h0, h, a.shape[-1], dtype, sequences)
    k = dh_final.to(dtype, copy=True)
    lambdas, dh0 = run_loop(_adjoint_step, (a, dh.to(dtype)), k, h, sequences.backwards())
    lambdas = zero_where_masked(lambdas, sequences.mask)
    da = lambdas.unsqueeze(-1) * previous(lagged(h, h0, sequences), h0, sequences)
    return zero_where_masked(da, sequences.mask).contiguous(), lambdas, dh0


def _differentiable_adjoint(
    dh: Tensor, dh_final: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, sequences: Sequences
) -> Gradients:
    """The adjoint through companion matrices: a `block_scan`, which is differentiable again."""
    m = a.shape[-1]
    dtype = state_dtype(a, h)
    h0 = state_or_zero(h0, h, m, dtype, sequences)
    s = lagged(h.to(dtype), h0, sequences)
    dC, ds, dh0 = block.SCAN.backward(
        first_entry(dh, m), dh_final, companion_matrix(a.to(dtype)), s, h0, sequences
    )
    return dC[..., 0, :], ds[..., 0], dh0


SCAN = define_scan("companion_scan", _scan, _adjoint, _differentiable_adjoint)
