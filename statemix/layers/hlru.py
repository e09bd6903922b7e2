"""The higher-order linear recurrent unit."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statemix.layers.mixer import register_mixer
from statemix.layers.unit import LinearRecurrentUnit, check_sizes
from statemix.layers.weights import project
from statemix.ops import expanded_companion_step
from statemix.ops.check import check_choice
from statemix.ops.companion import FORMS
from statemix.ops.dispatch.layer import Recurrence, Weights, scan_channels
from statemix.ops.lookup import Lookup, at_each_step
from statemix.ops.segments import Sequences
from statemix.types import BlockValues, Mask, SequenceBounds, States

__all__ = ["HLRU"]


class Newest(nn.Module):
    """The newest of each channel's m values: (.., n · m) to (.., n)."""

    def __init__(self, m: int) -> None:
        super().__init__()
        self.m = m

    def reset_parameters(self) -> None:
        """Do nothing: there are none."""

    def forward(self, s: Float[Tensor, "*batch nm"]) -> Float[Tensor, "*batch n"]:
        return s.unflatten(-1, (-1, self.m))[..., 0]


@register_mixer("hlru")
class HLRU(LinearRecurrentUnit):
    """Higher-order linear recurrent unit: `n` channels, each driven by its last `m` values.

        (a_1[t] .. a_m[t], a_0[t]) = softmax(W_g x[t] + c)        every row sums to one
        v[t] = W_v x[t]
        h[t] = Σ_i a_i[t] ⊙ h[t-i] + a_0[t] ⊙ v[t]
        y[t] = W_o (h[t], h[t-1], ..., h[t-m+1])

    Each value is a convex combination of the m before it and its own input, so no state
    ever exceeds the largest of |h0| and |v|, however long the sequence.

    Args:
        d_model: width d of the inputs x and the outputs y.
        n_channels: number n of channels.
        order: number m of values that a channel remembers.
        gate: the function that turns raw gates into rows, a name from `NORMALISERS`.
        selectivity: how much of the input the gates see: "full", "pointwise" or "none".
        gate_rank: rank of W_g; with a rank r it is a product of two matrices, of r columns and of r
            rows, with far fewer weights (None: full rank).
        form: "controller" is the recurrence above. "observer" transposes its companion matrix: a
            different model without the bound, for weights that were trained in that form.
        readout: "all" reads the last m values of every channel through W_o. "newest" returns the
            newest value of each of d_model channels, as the published non-selective layer does.
        init: how the gates start: "paper", "select", "hold", or the fields of a `GateInit`.
        learn_initial_state: start from a learned h0 instead of zero if no state is given.
        save_memory: recompute the gates in the backward pass, in chunks along the time axis,
            instead of keeping them.
        device: the device of the parameters.
        dtype: the dtype of the parameters.
    """

    recurrence = Recurrence.COMPANION

    def __init__(
        self,
        d_model: int,
        n_channels: int,
        order: int,
        *,
        gate: str = "softmax",
        selectivity: str = "full",
        gate_rank: int | None = None,
        form: str = "controller",
        readout: str = "all",
        init: str | Mapping[str, float] = "paper",
        learn_initial_state: bool = False,
        save_memory: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes({"d_model": d_model, "n_channels": n_channels, "order": order})
        check_choice("form", form, FORMS)
        check_choice("readout", readout, ("all", "newest"))
        if readout == "newest" and n_channels != d_model:
            raise ValueError(
                f"The readout 'newest' needs as many channels as d_model = {d_model}, "
                f"got {n_channels}."
            )
        if save_memory and form != "controller":
            raise ValueError(f"`save_memory` needs the form 'controller', got {form!r}.")
        super().__init__(
            d_model,
            n_channels,
            order,
            gate=gate,
            selectivity=selectivity,
            gate_rank=gate_rank,
            init=init,
            learn_initial_state=learn_initial_state,
            save_memory=save_memory,
            device=device,
            dtype=dtype,
        )
        self.form = form
        if readout == "newest":
            newest: Any = Newest(order)
            self.W_o = newest

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

        A state has the shape (B, n, m), or (N, n, m) for N packed sequences. The m values of a
        channel are ordered newest first.

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
        s, state = self.scan(gates, v, h0, time)
        y = project(self.W_o, s[:, read_from:].flatten(2))
        return y, state

    def scan(
        self, gates: Tensor, v: Tensor, h0: States | None, time: Sequences
    ) -> tuple[BlockValues, States]:
        """The states of all steps, and the final states, from the outputs of W_g and W_v.

        Their shapes are (B, T, n (m + 1)) and (B, T, n). The state after step t is
        (h[t], h[t-1], ..., h[t-m+1]).
        """
        gates = gates.unflatten(2, self.gate_shape)
        return scan_channels(gates, v, h0, time, gate=self.gate, form=self.form, group=self.context)

    _fusible_scan = scan

    def _weights(self) -> Weights | None:
        """The weights for the fused op, which computes only the controller form."""
        return super()._weights() if self.form == "controller" else None

    def step(
        self, x_t: Float[Tensor, "B d"], state: States | None = None
    ) -> tuple[Float[Tensor, "B d"], States]:
        """One step of a batch, for decoding."""
        h0 = self._prepare_step(x_t, state)
        fused = self._fused_step(x_t, h0)
        if fused is not None:
            return fused
        gates = self.W_g(x_t).unflatten(1, self.gate_shape)
        v = self.W_v(x_t)
        s, state = expanded_companion_step(gates, v, h0, gate=self.gate, form=self.form)
        y = self.W_o(s.flatten(1))
        return y, state

    _fusible_step = step

    def extra_repr(self) -> str:
        n, m = self.state_shape
        choices = f"gate={self.gate!r}, selectivity={self.selectivity!r}, form={self.form!r}"
        return f"d_model={self.d_model}, n_channels={n}, order={m}, {choices}"
