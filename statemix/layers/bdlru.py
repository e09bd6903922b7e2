"""The block-diagonal linear recurrent unit."""

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.layers.mixer import register_mixer
from statemix.layers.unit import LinearRecurrentUnit, check_sizes
from statemix.ops import context, gated_block_scan, gated_block_step
from statemix.ops.layer import Inputs
from statemix.ops.segments import Sequences
from statemix.types import BlockValues, Mask, SequenceBounds, States


@register_mixer("bdlru")
class BDLRU(LinearRecurrentUnit):
    """Block-diagonal linear recurrent unit: `n` blocks of `m` coupled states.

        (A[t] | a[t]) = softmax(W_g x[t] + c)        every row sums to one
        v[t] = W_v x[t]
        h[t] = A[t] h[t-1] + a[t] ⊙ v[t]
        y[t] = W_o h[t]

    Each state is a convex combination of the last block and its own input, so no state
    ever exceeds the largest of |h0| and |v|, however long the sequence.

    Args:
        d_model: width d of the inputs x and the outputs y.
        n_blocks: blocks n.
        block_size: states m of a block.
        gate: the function that turns raw gates into rows, a name from `NORMALISERS`.
        selectivity: what the gates see of the input: "full", "pointwise" or "none".
        learn_initial_state: start from a learned h0 instead of zero, where no state is given.
        save_memory: compute gates again in the backward pass, a stretch of time after the other, instead of keeping them.
        device: where the parameters live.
        dtype: what the parameters are.
    """

    writes_blocks = True

    def __init__(
        self,
        d_model: int,
        n_blocks: int,
        block_size: int,
        *,
        gate: str = "softmax",
        selectivity: str = "full",
        learn_initial_state: bool = False,
        save_memory: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes({"d_model": d_model, "n_blocks": n_blocks, "block_size": block_size})
        super().__init__(
            d_model,
            n_blocks,
            block_size,
            rows=n_blocks * block_size,
            gate=gate,
            selectivity=selectivity,
            learn_initial_state=learn_initial_state,
            save_memory=save_memory,
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: States | None = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], States]:
        """All steps of a batch; a state is (B, n, m), or (N, n, m) for N packed sequences."""
        x, h0 = self.enter("x", x, "(B, T, d)", state, cu_seqlens, mask)
        if self.is_one_op(x):
            return self.as_one_op(Inputs(x), h0, Sequences(cu_seqlens, mask))
        return self.one_by_one(x, h0, cu_seqlens, mask)

    def scan(
        self,
        gates: Tensor,
        v: Tensor,
        h0: States | None,
        cu_seqlens: SequenceBounds | None,
        mask: Mask | None,
    ) -> tuple[BlockValues, States]:
        """From gates (B, T, n m, m + 1) and values (B, T, n m) to the states h."""
        gates, v = gates.unflatten(2, self.state_shape), v.unflatten(2, self.state_shape)
        if self.context is None:
            return gated_block_scan(gates, v, h0, gate=self.gate, cu_seqlens=cu_seqlens, mask=mask)
        return context.gated_block_scan(
            gates, v, h0, group=self.context, gate=self.gate, cu_seqlens=cu_seqlens, mask=mask
        )

    def step(
        self, x_t: Float[Tensor, "B d"], state: States | None = None
    ) -> tuple[Float[Tensor, "B d"], States]:
        """One step of a batch, for decoding."""
        x_t, h0 = self.enter("x_t", x_t, "(B, d)", state)
        gates = self.W_g(x_t).unflatten(1, self.state_shape)
        v = self.W_v(x_t).unflatten(1, self.state_shape)
        h, state = gated_block_step(gates, v, h0, gate=self.gate)
        y = self.W_o(h.flatten(1))
        return y, state

    def extra_repr(self) -> str:
        n, m = self.state_shape
        return f"d_model={self.d_model}, n_blocks={n}, block_size={m}, gate={self.gate!r}, selectivity={self.selectivity!r}"
