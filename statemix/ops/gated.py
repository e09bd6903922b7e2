"""Normalise and scan in one op: raw gates in, states out.

    (A[t] | a[t]) = normalise(gates[t])         the input gate is the last column
    h[t] = A[t] h[t-1] + a[t] ⊙ v[t]

and likewise with the m coefficients of `companion_scan` in place of A. Weights are computed in the
dtype of the states. A fused kernel does not need to store them. With w = (A | a) and (dA, db, dh0)
from the adjoint of the scan,

    dw[t] = (dA[t] | db[t] ⊙ v[t]),    dv[t] = a[t] ⊙ db[t],
    dgates[t] = Jacobian of the normaliser at gates[t], transposed, times dw[t].

The Jacobian of a normaliser such as softmax contains differences of states, w[j] (h[t-1, j] − h[t,
i]), which may be small compared with the states. With half-precision gates, the op therefore takes
v in float32 and keeps h in float32 for the backward pass; its output is rounded afterwards.

A masked step is the identity after normalisation, so its gates and values have no effect.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.ops import block, check, companion
from statemix.ops.dispatch.registry import Gradients, Pair, Scan, in_transform, register_ops
from statemix.ops.normalise import NORMALISERS, find_normaliser
from statemix.ops.precision import output_and_state, output_dtype, state_dtype
from statemix.ops.segments import Sequences, zero_where_masked
from statemix.types import (
    BlockGates,
    BlockValues,
    ChannelGates,
    ChannelValues,
    Mask,
    SequenceBounds,
    States,
)

__all__ = [
    "BLOCK",
    "COMPANION",
    "GatedScan",
    "gated_block_scan",
    "gated_block_step",
    "gated_companion_scan",
]


def gated_block_scan(
    gates: BlockGates,
    v: BlockValues,
    initial_state: States | None = None,
    *,
    gate: str = "softmax",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Normalise the rows of `gates` with the gate function `gate`, then run `block_scan`."""
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_block_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    return BLOCK(gates, v, initial_state, sequences, gate)


def gated_companion_scan(
    gates: ChannelGates,
    v: ChannelValues,
    initial_state: States | None = None,
    *,
    gate: str = "softmax",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[ChannelValues, States]:
    """Normalise the rows (a_1 .. a_m, a_0) with the gate function, then run `companion_scan`."""
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    return COMPANION(gates, v, initial_state, sequences, gate)


def gated_block_step(
    gates_t: Float[Tensor, "B n m m+1"],
    v_t: Float[Tensor, "B n m"],
    h: Float[Tensor, "B n m"] | None,
    *,
    gate: str = "softmax",
) -> tuple[Float[Tensor, "B n m"], Float[Tensor, "B n m"]]:
    """Run one step in plain torch; return the new h in the dtype of the inputs, and as a state.

    The step starts from zero if `h` is None.
    """
    w = find_normaliser(gate).forward(gates_t.to(state_dtype(gates_t, v_t)))
    h = block.block_step(
        w[..., :-1], w[..., -1] * v_t, torch.zeros_like(w[..., -1]) if h is None else h
    )
    return output_and_state(h, gates_t, v_t)


@dataclass(frozen=True)
class GatedScan:
    """The registered ops, forward and backward, that normalise gates and then run `scan`."""

    scan: Scan

    @property
    def name(self) -> str:
        return f"gated_{self.scan.name}"

    def __call__(
        self, gates: Tensor, v: Tensor, h0: Tensor | None, sequences: Sequences, gate: str
    ) -> Pair:
        if in_transform():
            return self.body(gates, v, h0, sequences, gate)
        h, final = getattr(torch.ops.statemix, self.name)(
            gates, v.to(state_dtype(gates, v)), h0, *sequences, gate
        )
        return h.to(output_dtype(gates, v)), final

    def body(
        self, gates: Tensor, v: Tensor, h0: Tensor | None, sequences: Sequences, gate: str
    ) -> Pair:
        w = NORMALISERS[gate].forward(
            zero_where_masked(gates.to(state_dtype(gates, v)), sequences.mask)
        )
        h, final = self.scan(
            w[..., :-1], w[..., -1] * zero_where_masked(v, sequences.mask), h0, sequences
        )
        return h.to(output_dtype(gates, v)), final

    def adjoint(
        self,
        dh: Tensor,
        dh_final: Tensor,
        gates: Tensor,
        v: Tensor,
        h: Tensor,
        h0: Tensor | None,
        sequences: Sequences,
        gate: str,
    ) -> Gradients:
        """(dgates, dv, dh0) by the equations at the top of this file, in the dtype of states."""
        dtype = state_dtype(gates, v)
        gates = zero_where_masked(gates.to(dtype), sequences.mask)
        v = zero_where_masked(v.to(dtype), sequences.mask)
        normaliser = NORMALISERS[gate]
        w = normaliser.forward(gates)
        dA, db, dh0 = self.scan.backward(dh, dh_final, w[..., :-1], h.to(dtype), h0, sequences)
        dw = torch.cat([dA, (db * v).unsqueeze(-1)], -1)
        return normaliser.vjp(gates, dw).contiguous(), (w[..., -1] * db).contiguous(), dh0

    def backward(
        self,
        dh: Tensor,
        dh_final: Tensor,
        gates: Tensor,
        v: Tensor,
        h: Tensor,
        h0: Tensor | None,
        sequences: Sequences,
        gate: str,
    ) -> Gradients:
        if torch.is_grad_enabled():
            return self.adjoint(dh, dh_final, gates, v, h, h0, sequences, gate)
        return getattr(torch.ops.statemix, f"{self.name}_backward")(
            dh, dh_final, gates, v, h, h0, *sequences, gate
        )


def _define_gated_scan(scan: Scan) -> GatedScan:
    """Register the gated form of `scan`."""
    gated = GatedScan(scan)
    register_ops(gated.name, gated.body, gated.adjoint, gated.backward, gated=True)
    return gated


BLOCK = _define_gated_scan(block.SCAN)
COMPANION = _define_gated_scan(companion.SCAN)
