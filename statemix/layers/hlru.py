"""The higher-order linear recurrent unit."""

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.layers.mixer import register_mixer
from statemix.layers.unit import LinearRecurrentUnit, check_sizes
from statemix.ops import context, expanded_companion_scan, expanded_companion_step
from statemix.ops.check import check_choice
from statemix.ops.companion import FORMS
from statemix.ops.layer import Inputs
from statemix.ops.segments import Sequences
from statemix.types import BlockValues, Mask, SequenceBounds, States


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
        n_channels: channels n.
        order: values m that a channel remembers.
        gate: the function that turns raw gates into rows, a name from `NORMALISERS`.
        selectivity: what the gates see of the input: "full", "pointwise" or "none".
        form: "controller" is the recurrence above; "observer" transposes its companion matrix, which
            is another model without the bound, for weights that were trained so.
        learn_initial_state: start from a learned h0 instead of zero, where no state is given.
        save_memory: compute gates again in the backward pass, a stretch of time after the other, instead of keeping them.
        device: where the parameters live.
        dtype: what the parameters are.
    """

    writes_blocks = False

    def __init__(
        self,
        d_model: int,
        n_channels: int,
        order: int,
        *,
        gate: str = "softmax",
        selectivity: str = "full",
        form: str = "controller",
        learn_initial_state: bool = False,
        save_memory: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sizes({"d_model": d_model, "n_channels": n_channels, "order": order})
        check_choice("form", form, FORMS)
        if save_memory and form != "controller":
            raise ValueError(f"`save_memory` needs the form 'controller', got {form!r}.")
        super().__init__(
            d_model,
            n_channels,
            order,
            rows=n_channels,
            gate=gate,
            selectivity=selectivity,
            learn_initial_state=learn_initial_state,
            save_memory=save_memory,
            device=device,
            dtype=dtype,
        )
        self.form = form

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: States | None = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], States]:
        """All steps of a batch; a state is (B, n, m), newest first, or (N, n, m) for N packed sequences."""
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
        """From gates (B, T, n, m + 1) and values (B, T, n) to the states (h[t], h[t-1], ..., h[t-m+1])."""
        if self.context is None:
            return expanded_companion_scan(
                gates, v, h0, gate=self.gate, form=self.form, cu_seqlens=cu_seqlens, mask=mask
            )
        return context.expanded_companion_scan(
            gates,
            v,
            h0,
            group=self.context,
            gate=self.gate,
            form=self.form,
            cu_seqlens=cu_seqlens,
            mask=mask,
        )

    def is_one_op(self, x: Tensor, tokens: Tensor | None = None) -> bool:
        """Not in the form that is here for published weights alone."""
        return self.form == "controller" and super().is_one_op(x, tokens)

    def step(
        self, x_t: Float[Tensor, "B d"], state: States | None = None
    ) -> tuple[Float[Tensor, "B d"], States]:
        """One step of a batch, for decoding."""
        x_t, h0 = self.enter("x_t", x_t, "(B, d)", state)
        gates = self.W_g(x_t)
        v = self.W_v(x_t)
        s, state = expanded_companion_step(gates, v, h0, gate=self.gate, form=self.form)
        y = self.W_o(s.flatten(1))
        return y, state

    def extra_repr(self) -> str:
        n, m = self.state_shape
        choices = f"gate={self.gate!r}, selectivity={self.selectivity!r}, form={self.form!r}"
        return f"d_model={self.d_model}, n_channels={n}, order={m}, {choices}"
