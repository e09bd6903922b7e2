"""The higher-order linear recurrence, and its adjoint.

    h[t] = Σ_i a_i[t] h[t-i] + b[t],    i = 1 .. m,    (h[-1], ..., h[-m]) = h0

The state is the last m outputs, newest first.  The gradient k of the loss with respect to the state
that enters a step costs m operations a step too,

    λ[t] = dh[t] + k_1[t+1],
    k_i[t] = a_i[t] λ[t] + k_{i+1}[t+1],    k_{m+1} = 0,    k[T] = dh_final,
    da_i[t] = λ[t] h[t-i],    db[t] = λ[t],    dh0 = k[0].

This is the controller form, the paper's.  The observer form transposes the companion matrix,

    s_i[t] = a_i[t] s_1[t-1] + s_{i+1}[t-1],    plus b[t] at i = 1,    h[t] = s_1[t],

which for m ≥ 2 is another recurrence: with rows that sum to one it may still exceed every input.
It is here so that weights trained in that form can be evaluated.
"""

import torch
from torch import Tensor

from statemix.ops import block, check
from statemix.ops.block import state_or_zero
from statemix.ops.dispatch.registry import Gradients, Pair, define_scan
from statemix.ops.lags import companion_matrix, first_entry, lagged
from statemix.ops.loop import run_loop
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences, previous, zero_where_masked
from statemix.types import ChannelValues, Coefficients, Mask, SequenceBounds, States

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
    """Scan h[t] = Σ_i a_i[t] h[t-i] + b[t]; return every h and the final state of each sequence.

    Args:
        initial_state: the m outputs before the first step, newest first, zero if None.
        form: "controller" is this recurrence; "observer" its transpose, whose state is s.
        cu_seqlens: bounds of N sequences packed into a batch of one; there are then N states.
        mask: True at real steps; any other step leaves the state as it is.
        reverse: run from the last step to the first; states enter at the end and leave at the start.
    """
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_companion_scan("a", a, "b", b, initial_state, sequences)
    check.check_choice("form", form, FORMS)
    if form == "observer":
        s, final = observer_scan(a, b, initial_state, sequences)
        return s[..., 0], final
    return SCAN(a, b, initial_state, sequences)


def observer_scan(a: Tensor, b: Tensor, initial_state: Tensor | None, sequences: Sequences) -> Pair:
    """The observer form, with the whole state s (B T n m) at every step."""
    return block.SCAN(companion_matrix(a).mT, first_entry(b, a.shape[-1]), initial_state, sequences)


def companion_step(a_t: Tensor, b_t: Tensor, s: Tensor | None) -> Tensor:
    """One step of the controller form, from zero if `s` is None: the new output, then the m - 1 newest of the old ones."""
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
    inputs = [
        zero_where_masked(x, sequences.mask) for x in (a, b)
    ]  # a derivative of the loop would multiply NaN by zero
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
    dtype, mask = state_dtype(a, h), sequences.mask
    h, dh, h0 = h.to(dtype), dh.to(dtype), state_or_zero(h0, h, a.shape[-1], dtype, sequences)
    lambdas, dh0 = run_loop(
        _adjoint_step, (a, dh), dh_final.to(dtype, copy=True), h, sequences.backwards()
    )
    lambdas = zero_where_masked(lambdas, mask)
    da = lambdas.unsqueeze(-1) * previous(lagged(h, h0, sequences), h0, sequences)
    return zero_where_masked(da, mask).contiguous(), lambdas, dh0


def _differentiable_adjoint(
    dh: Tensor, dh_final: Tensor, a: Tensor, h: Tensor, h0: Tensor | None, sequences: Sequences
) -> Gradients:
    """The same through companion matrices, where the adjoint is a `block_scan` and so has a gradient of its own."""
    dtype, m = state_dtype(a, h), a.shape[-1]
    h0 = state_or_zero(h0, h, m, dtype, sequences)
    s = lagged(h.to(dtype), h0, sequences)
    dC, ds, dh0 = block.SCAN.backward(
        first_entry(dh, m), dh_final, companion_matrix(a.to(dtype)), s, h0, sequences
    )
    return dC[..., 0, :], ds[..., 0], dh0


SCAN = define_scan("companion_scan", _scan, _adjoint, _differentiable_adjoint)
