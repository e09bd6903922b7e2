"""The higher-order recurrence with the full state at every step, which H-LRU reads out.

    (a_1[t] .. a_m[t], a_0[t]) = normalise(gates[t])
    h[t] = Σ_i a_i[t] h[t-i] + a_0[t] v[t]
    s[t] = (h[t], h[t-1], ..., h[t-m+1])

In the observer form, s is the state of the transposed companion recurrence instead.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.ops import check
from statemix.ops.block import block_step, state_or_zero
from statemix.ops.companion import FORMS, companion_step, observer_scan
from statemix.ops.gated import gated_companion_scan
from statemix.ops.lags import companion_matrix, first_entry, lagged
from statemix.ops.normalise import find_normaliser
from statemix.ops.precision import output_and_state, output_dtype, state_dtype
from statemix.ops.segments import Sequences, zero_where_masked
from statemix.types import ChannelGates, ChannelValues, Coefficients, Mask, SequenceBounds, States

__all__ = ["expanded_companion_scan", "expanded_companion_step"]


def expanded_companion_scan(
    gates: ChannelGates,
    v: ChannelValues,
    initial_state: States | None = None,
    *,
    gate: str = "softmax",
    form: str = "controller",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[Coefficients, States]:
    """Run `gated_companion_scan`; return s instead of h, and the final state of each sequence."""
    check.check_choice("form", form, FORMS)
    sequences = Sequences(cu_seqlens, mask, reverse)
    if form == "observer":
        check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
        w = find_normaliser(gate).forward(zero_where_masked(gates.to(state_dtype(gates, v)), mask))
        s, final = observer_scan(
            w[..., :-1], w[..., -1] * zero_where_masked(v, mask), initial_state, sequences
        )
        return s.to(output_dtype(gates, v)), final
    h, final = gated_companion_scan(
        gates, v, initial_state, gate=gate, cu_seqlens=cu_seqlens, mask=mask, reverse=reverse
    )
    s0 = state_or_zero(initial_state, v, gates.shape[-1] - 1, h.dtype, sequences)
    return lagged(h, s0, sequences), final


def expanded_companion_step(
    gates_t: Float[Tensor, "B n m_plus_1"],
    v_t: Float[Tensor, "B n"],
    s: Float[Tensor, "B n m"] | None,
    *,
    gate: str = "softmax",
    form: str = "controller",
) -> tuple[Float[Tensor, "B n m"], Float[Tensor, "B n m"]]:
    """Run one step in plain torch; return the new s in the dtype of the inputs, and as a state.

    The step starts from zero if `s` is None.
    """
    check.check_choice("form", form, FORMS)
    w = find_normaliser(gate).forward(gates_t.to(state_dtype(gates_t, v_t)))
    a_t = w[..., :-1]
    b_t = w[..., -1] * v_t
    s = torch.zeros_like(a_t) if s is None else s
    if form == "observer":
        s = block_step(companion_matrix(a_t).mT, first_entry(b_t, a_t.shape[-1]), s)
    if form == "controller":
        s = companion_step(a_t, b_t, s)
    return output_and_state(s, gates_t, v_t)
