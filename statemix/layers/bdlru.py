"""The block-diagonal linear recurrent unit."""

from collections.abc import Mapping
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.layers.mixer import register_mixer
from statemix.layers.unit import LinearRecurrentUnit, check_sizes
from statemix.layers.weights import project
from statemix.ops import gated_block_step
from statemix.ops.dispatch.layer import Recurrence, scan_blocks
from statemix.ops.lookup import Lookup, at_each_step
from statemix.ops.segments import Sequences
from statemix.types import BlockValues, Mask, SequenceBounds, States

__all__ = ["BDLRU"]


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
        n_blocks: number n of blocks.
        block_size: number m of states in a block.
        gate: the function that turns raw gates into rows, a name from `NORMALISERS`.
        selectivity: how much of the input the gates see: "full", "pointwise" or "none".
        gate_rank: rank of W_g; with a rank r it is a product of two matrices, of r columns and of r
            rows, with far fewer weights (None: full rank).
        init: how the gates start: "paper", "select", "hold", or the fields of a `GateInit`.
        learn_initial_state: start from a learned h0 instead of zero if no state is given.
        save_memory: recompute the gates in the backward pass, in chunks along the time axis,
            instead of keeping them.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
    """

    recurrence = Recurrence.BLOCK

    def __init__(
        self,
        d_model: int,
        n_blocks: int,
        block_size: int,
        *,
        gate: str = "softmax",
        selectivity: str = "full",
        gate_rank: int | None = None,
        init: str | Mapping[str, float] = "paper",
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
            gate=gate,
            selectivity=selectivity,
            gate_rank=gate_rank,
            init=init,
            learn_initial_state=learn_initial_state,
            save_memory=save_memory,
            device=device,
            dtype=dtype,
        )

    def forward(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: States | None = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
        reverse: bool = False,
        read_from: int = 0,
    ) -> tuple[Float[Tensor, "B T_read d"], States]:
        """Run all steps of a batch of sequences; return the outputs and the final state.

        A state has the shape (B, n, m), or (N, n, m) for N packed sequences.

        With `reverse`, time runs from the last step to the first: the initial state enters at the
        last step, and the final state is the one after the first step. The outputs are those of
        the steps `read_from` .. T − 1; W_o is not applied to earlier steps.
        """
        x, h0 = self._prepare(x, state, cu_seqlens, mask, read_from)
        time = Sequences(cu_seqlens, mask, reverse)
        fused = self._fused(x, h0, time, read_from)
        if fused is not None:
            return fused
        gates = at_each_step(partial(project, self.W_g), x)
        v = at_each_step(partial(project, self.W_v), x)
        h, state = self.scan(gates, v, h0, time)
        y = project(self.W_o, h[:, read_from:].flatten(2))
        return y, state

    def scan(
        self, gates: Tensor, v: Tensor, h0: States | None, time: Sequences
    ) -> tuple[BlockValues, States]:
        """The states h of all steps, and the final states, from the outputs of W_g and W_v.

        Their shapes are (B, T, n m (m + 1)) and (B, T, n m).
        """
        gates = gates.unflatten(2, self.gate_shape)
        v = v.unflatten(2, self.state_shape)
        return scan_blocks(gates, v, h0, time, gate=self.gate, group=self.context)

    _fusible_scan = scan

    def step(
        self, x_t: Float[Tensor, "B d"], state: States | None = None
    ) -> tuple[Float[Tensor, "B d"], States]:
        """One step of a batch, for decoding."""
        h0 = self._prepare_step(x_t, state)
        fused = self._fused_step(x_t, h0)
        if fused is not None:
            return fused
        gates = self.W_g(x_t).unflatten(1, self.gate_shape)
        v = self.W_v(x_t).unflatten(1, self.state_shape)
        h, state = gated_block_step(gates, v, h0, gate=self.gate)
        y = self.W_o(h.flatten(1))
        return y, state

    _fusible_step = step

    def extra_repr(self) -> str:
        n, m = self.state_shape
        sizes = f"d_model={self.d_model}, n_blocks={n}, block_size={m}"
        return f"{sizes}, gate={self.gate!r}, selectivity={self.selectivity!r}"
