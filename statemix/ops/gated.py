"""Normalise and scan in one op: raw gates in, states out.

    (A[t] | a[t]) = normalise(gates[t])         the input gate is the last column
    h[t] = A[t] h[t-1] + a[t] ⊙ v[t]

and likewise with the m coefficients of `companion_scan` in place of A.  Weights are computed in the dtype of
states and need never be stored: this is the entry that a kernel fuses.  With w = (A | a) and (dA, db, dh0) from
the scan's own adjoint,

    dw[t] = (dA[t] | db[t] ⊙ v[t]),    dgates[t] = dw[t] through the normaliser's Jacobian,    dv[t] = a[t] ⊙ db[t].

The Jacobian of softmax and its like subtracts states from each other, w[j] (h[t-1, j] − h[t, i]), and states may be close together.  So
with half-precision gates the op is given v in float32, and keeps h in float32 for the backward pass; its output is rounded afterwards.

A masked step is the identity after normalisation, so nothing that stands there is ever read.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.ops import block, check, companion
from statemix.ops.dispatch.registry import (
    OPS,
    Gradients,
    Pair,
    Scan,
    cast_each,
    define_gradient,
    define_op,
    empty_outputs,
    in_transform,
)
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
    """Normalise rows of `gates` with the function named `gate`, then scan as `block_scan` does."""
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
    """Normalise `gates`, (a_1 .. a_m, a_0), with the function named `gate`, then scan as `companion_scan` does."""
    sequences = Sequences(cu_seqlens, mask, reverse)
    check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    return COMPANION(gates, v, initial_state, sequences, gate)


def gated_block_step(
    gates_t: Tensor, v_t: Tensor, h: Tensor | None, *, gate: str = "softmax"
) -> Pair:
    """One step in plain torch, from zero if `h` is None: the new h in the inputs' dtype, and as a state."""
    w = find_normaliser(gate).forward(gates_t.to(state_dtype(gates_t, v_t)))
    h = block.block_step(
        w[..., :-1], w[..., -1] * v_t, torch.zeros_like(w[..., -1]) if h is None else h
    )
    return output_and_state(h, gates_t, v_t)


@dataclass(frozen=True)
class GatedScan:
    """The registered pair of ops that put a normaliser in front of `scan`."""

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
        dtype, mask = state_dtype(gates, v), sequences.mask
        gates, v = zero_where_masked(gates.to(dtype), mask), zero_where_masked(v.to(dtype), mask)
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


def define_gated_scan(scan: Scan) -> GatedScan:
    """Register both ops of the gated form of `scan` and tie them together."""
    gated = GatedScan(scan)

    def fake(gates, v, h0, cu_seqlens, mask, reverse, gate):
        return empty_outputs(gates, v, gates.shape[-1] - 1, Sequences(cu_seqlens, mask, reverse))

    def adjoint_body(dh, dh_final, gates, v, h, h0, cu_seqlens, mask, reverse, gate):
        dgates, dv, dh0 = gated.adjoint(
            dh, dh_final, gates, v, h, h0, Sequences(cu_seqlens, mask, reverse), gate
        )
        return dgates.to(gates.dtype), dv.to(v.dtype), dh0

    def adjoint_fake(dh, dh_final, gates, v, h, h0, cu_seqlens, mask, reverse, gate):
        return (
            gates.new_empty(gates.shape),
            v.new_empty(v.shape),
            dh_final.new_empty(dh_final.shape, dtype=state_dtype(gates, v)),
        )

    def setup_context(ctx, inputs, output):
        gates, v, h0, cu_seqlens, mask, ctx.reverse, ctx.gate = inputs
        ctx.dtypes = [None if y is None else y.dtype for y in (gates, v, h0)]
        ctx.save_for_backward(gates, v, output[0], h0, cu_seqlens, mask)

    def backward(ctx, dh, dh_final):
        gates, v, h, h0, cu_seqlens, mask = ctx.saved_tensors
        gradients = gated.backward(
            dh, dh_final, gates, v, h, h0, Sequences(cu_seqlens, mask, ctx.reverse), ctx.gate
        )
        return *cast_each(gradients, ctx.dtypes), None, None, None, None

    tail = "Tensor? h0, Tensor? cu_seqlens, Tensor? mask, bool reverse, str gate"
    define_op(
        gated.name,
        f"(Tensor gates, Tensor v, {tail}) -> (Tensor, Tensor)",
        lambda gates, v, h0, cu, mask, reverse, gate: gated.body(
            gates, v, h0, Sequences(cu, mask, reverse), gate
        ),
        fake,
    )
    define_op(
        f"{gated.name}_backward",
        f"(Tensor dh, Tensor dh_final, Tensor gates, Tensor v, Tensor h, {tail}) -> (Tensor, Tensor, Tensor)",
        adjoint_body,
        adjoint_fake,
    )
    define_gradient(gated.name, backward, setup_context)
    OPS.extend([gated.name, f"{gated.name}_backward"])
    return gated


BLOCK = define_gated_scan(block.SCAN)
COMPANION = define_gated_scan(companion.SCAN)
