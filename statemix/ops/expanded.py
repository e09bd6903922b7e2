"""The higher-order recurrence with its whole state at every step: what H-LRU reads out.

    (a_1[t] .. a_m[t], a_0[t]) = normalise(gates[t])
    h[t] = Σ_i a_i[t] h[t-i] + a_0[t] v[t]
    s[t] = (h[t], h[t-1], ..., h[t-m+1])

In the observer form s is the state of the transposed companion recurrence instead.
"""

import torch
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
    """Scan as `gated_companion_scan` does; return s instead of h, and the final state of each sequence."""
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
    gates_t: Tensor,
    v_t: Tensor,
    s: Tensor | None,
    *,
    gate: str = "softmax",
    form: str = "controller",
) -> tuple[Tensor, Tensor]:
    """One step in plain torch, from zero if `s` is None: the new s in the inputs' dtype, and as a state."""
    check.check_choice("form", form, FORMS)
    w = find_normaliser(gate).forward(gates_t.to(state_dtype(gates_t, v_t)))
    a_t, b_t = w[..., :-1], w[..., -1] * v_t
    s = torch.zeros_like(a_t) if s is None else s
    if form == "observer":
        s = block_step(companion_matrix(a_t).mT, first_entry(b_t, a_t.shape[-1]), s)
    if form == "controller":
        s = companion_step(a_t, b_t, s)
    return output_and_state(s, gates_t, v_t)
