"""The parts that both of the paper's layers share: gates, two projections, and an initial state."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statemix.layers.gates import (
    INIT_STD,
    Gates,
    linear_parameters,
    make_gates,
    make_linear,
)
from statemix.layers.init import find_init, set_init
from statemix.layers.mixer import ReadsTables
from statemix.layers.weights import input_dtype, plain_weights
from statemix.ops.check import (
    check_cu_seqlens,
    check_device,
    check_floating,
    check_mask,
    check_state,
)
from statemix.ops.dispatch.layer import Recurrence, Weights, fused_layer, resolve
from statemix.ops.dispatch.step import Block, fused_block_step, fused_layer_step
from statemix.ops.lookup import Lookup, at_each_step, steps_of
from statemix.ops.normalise import NORMALISERS, find_normaliser
from statemix.ops.precision import cast_like, is_autocast, promote
from statemix.ops.segments import Sequences
from statemix.types import BlockValues, Mask, States

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["LinearRecurrentUnit", "check_sizes"]


class LinearRecurrentUnit(ReadsTables, ABC):
    """The projections `W_g`, `W_v` and `W_o` around a linear recurrence with n × m states.

    Each row of gates has m + 1 entries: one for each of m states, and one for the input.
    """

    recurrence: ClassVar[Recurrence]
    h0: nn.Parameter | None
    context: "ProcessGroup | None" = None  # the ranks that share sequences: see `share_sequences`
    # A subclass may override `scan` or `step`.
    _fusible_scan: ClassVar[Callable[..., tuple[Tensor, Tensor]]]
    _fusible_step: ClassVar[Callable[..., tuple[Tensor, Tensor]]]

    def __init__(
        self,
        d_model: int,
        n: int,
        m: int,
        *,
        gate: str,
        selectivity: str,
        gate_rank: int | None,
        init: str | Mapping[str, float],
        learn_initial_state: bool,
        save_memory: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        find_normaliser(gate)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"`dtype` must be floating point, got {dtype}.")
        if save_memory and selectivity != "full":
            raise ValueError(
                "`save_memory` needs selectivity 'full', whose gates can be recomputed, "
                f"got {selectivity!r}."
            )
        if save_memory and gate_rank is not None:
            raise ValueError(
                "`save_memory` recomputes gates of full rank: "
                f"leave `gate_rank` at None, got {gate_rank}."
            )
        self.d_model = d_model
        self.state_shape = (n, m)
        self.gate = gate
        self.selectivity = selectivity
        self.gate_rank = gate_rank
        self.save_memory = save_memory
        rows = n * self.recurrence.rows(m)
        if gate_rank is not None:
            check_sizes({"gate_rank": gate_rank})
        self.W_g: Gates = make_gates(
            selectivity,
            d_model,
            rows,
            m + 1,
            gate=gate,
            rank=gate_rank,
            device=device,
            dtype=dtype,
        )
        set_init(self.W_g, find_init(init), self.recurrence.rows(m), m + 1)
        self.W_v = make_linear(d_model, rows, bias=False, device=device, dtype=dtype)
        self.W_o = make_linear(n * m, d_model, bias=False, device=device, dtype=dtype)
        h0 = nn.Parameter(torch.empty(n, m, device=device, dtype=dtype))
        self.register_parameter("h0", h0 if learn_initial_state else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the parameters: the gates according to `init`, all others from N(0, 0.02²)."""
        self.W_g.reset_parameters()
        self.W_v.reset_parameters()
        self.W_o.reset_parameters()
        if self.h0 is not None:
            nn.init.normal_(self.h0, std=INIT_STD)

    @torch.no_grad()
    def sharpen(self, factor: float) -> None:
        """Multiply the raw gates by `factor`.

        For a factor above one, each row comes closer to selecting a single entry, and states last
        longer.
        """
        if not find_normaliser(self.gate).saturates:
            known = ", ".join(name for name, each in NORMALISERS.items() if each.saturates)
            raise ValueError(
                f"Only gates that saturate can be sharpened ({known}), got {self.gate!r}."
            )
        torch._foreach_mul_(linear_parameters(self.W_g), factor)

    @property
    def state_size(self) -> int:
        """Numbers in the state of one sequence: n · m."""
        n, m = self.state_shape
        return n * m

    @property
    def gate_shape(self) -> tuple[int, ...]:
        """The shape of the gates at one step, as in `W_g(x).unflatten(-1, gate_shape)`.

        There are n rows of m + 1 gates, or n blocks of m such rows.
        """
        n, m = self.state_shape
        return (n, m, m + 1) if self.recurrence.is_block else (n, m + 1)

    @abstractmethod
    def scan(
        self, gates: Tensor, v: Tensor, h0: Tensor | None, time: Sequences
    ) -> tuple[Tensor, Tensor]:
        """The states (B, T, n, m) of all steps, and the final states.

        `gates` and `v` are the outputs of W_g and W_v.
        """

    def trace(
        self,
        x: Float[Tensor, "B T d"],
        state: States | None = None,
        *,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], BlockValues]:
        """The outputs of `forward`, and the states (B, T, n, m) after every step.

        `forward` can continue from any of these states.
        """
        inputs, h0 = self._prepare(x, state, None, mask)
        gates, v = promote(at_each_step(self.W_g, inputs), at_each_step(self.W_v, inputs))
        h, _ = self.scan(gates, v, h0, Sequences(mask=mask))
        y = self.W_o(cast_like(h.flatten(2), x))
        return y, h

    def _fused(
        self, x: Tensor | Lookup, h0: Tensor | None, time: Sequences, read_from: int
    ) -> tuple[Tensor, Tensor] | None:
        """(y, final state) if one op can compute the layer, else None."""
        return fused_layer(
            x,
            self._weights(),
            h0,
            time,
            recurrence=self.recurrence,
            gate=self.gate,
            save_memory=self.save_memory,
            group=self.context,
            read_from=read_from,
        )

    def _fused_step(self, x_t: Tensor, h0: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """(y_t, next state) if one call can compute the step, else None."""
        return fused_layer_step(x_t, self._weights(), h0, self.recurrence, self.gate)

    def step_in_block(
        self, x_t: Tensor, state: Tensor | None, block: Block
    ) -> tuple[Tensor, Tensor] | None:
        """One step (B, d) of a residual block around the layer in one call, or None."""
        if type(self).step is not type(self)._fusible_step:  # type: ignore[attr-defined]
            return None
        h0 = self._prepare_step(x_t, state)
        return fused_block_step(x_t, self._weights(), block, h0, self.recurrence, self.gate)

    def _weights(self) -> Weights | None:
        """The tensors of the projections if a fused op may read them, else None.

        A fused op must not replace a projection that users altered, or an overridden `scan`.
        """
        if type(self).scan is not type(self)._fusible_scan:
            return None
        return plain_weights(self.W_g, self.W_v, self.W_o)

    def _prepare(
        self,
        x: Tensor | Lookup,
        state: Tensor | None,
        cu_seqlens: Tensor | None,
        mask: Tensor | None,
        read_from: int = 0,
    ) -> tuple[Tensor | Lookup, Tensor | None]:
        """Check the arguments of `forward`; return the inputs and the initial state.

        The inputs are zero at masked steps. An initial state of None means zero.
        """
        if isinstance(x, Lookup):
            self._check_lookup(x)
        else:
            self._check_input("x", x, "(B, T, d)")
        steps = steps_of(x)
        if not 0 <= read_from <= steps.shape[1]:
            raise ValueError(
                f"`read_from` must be a step in 0 .. {steps.shape[1]}, got {read_from}."
            )
        if cu_seqlens is not None:
            check_cu_seqlens(cu_seqlens, steps.shape[0])
            check_device("cu_seqlens", cu_seqlens, "x", steps)
        if mask is not None:
            check_mask(mask, *steps.shape[:2])
            check_device("mask", mask, "x", steps)
        count = Sequences(cu_seqlens).count(steps)
        return resolve(x, mask), self._initial_state("x", x.shape, steps, count, state)

    def _initial_state(
        self, name: str, shape: torch.Size, like: Tensor, count: int, state: Tensor | None
    ) -> Tensor | None:
        """Check the given state and return it; without one, return the learned state or None.

        The state has `count` rows, one for each sequence of the input called `name`.
        """
        expected = (count, *self.state_shape)
        if state is not None:
            check_state("state", state, expected, f"`{name}`, whose shape is {tuple(shape)}")
            check_device("state", state, name, like)
            return state
        return None if self.h0 is None else self.h0.expand(expected)

    def _prepare_step(self, x_t: Tensor, state: Tensor | None) -> Tensor | None:
        """Check the arguments of `step`; return the initial state, None for zero."""
        self._check_input("x_t", x_t, "(B, d)")
        return self._initial_state("x_t", x_t.shape, x_t, x_t.shape[0], state)

    def _check_lookup(self, x: Lookup) -> None:
        """Check that the table has the axes (V, d), and that tokens are integers (B, T)."""
        self._check_input("table", x.table, "(V, d)")
        if x.tokens.dim() != 2 or x.tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                "`tokens` must be integers with the axes (B, T), "
                f"got {x.tokens.dtype} of the shape {tuple(x.tokens.shape)}."
            )
        check_device("tokens", x.tokens, "table", x.table)

    def _check_input(self, name: str, x: Tensor, axes: str) -> None:
        """Check that `x` has the given axes, a last axis of size d_model, and the layer's dtype."""
        check_floating(name, x)
        if x.dim() != axes.count(",") + 1 or x.shape[-1] != self.d_model:
            raise ValueError(
                f"`{name}` must have the axes {axes} with d = {self.d_model}, "
                f"got the shape {tuple(x.shape)}."
            )
        dtype = input_dtype(self.W_v)
        if x.dtype != dtype and not is_autocast(x):
            raise TypeError(
                f"`{name}` must have the dtype of the layer, {dtype}, got {x.dtype}. "
                "Convert one of them with .to(), or use autocast."
            )


def check_sizes(sizes: dict[str, int]) -> None:
    """Check that every size of a layer is at least one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(f"`{name}` must be a whole number, got {size!r}.")
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, got {size}.")
