"""What both of the paper's layers are made of: gates, two projections, and a state to start from."""

from abc import ABC, abstractmethod
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.modules.module import _has_any_global_hook
from torch.utils.checkpoint import checkpoint

from statemix.layers.gates import (
    INIT_STD,
    FullGates,
    Gates,
    Projection,
    linear_parameters,
    make_gates,
)
from statemix.ops.check import (
    check_cu_seqlens,
    check_device,
    check_floating,
    check_mask,
    check_state,
)
from statemix.ops.layer import Inputs, Weights, find_layer_kernel, is_worthwhile, recurrent_layer
from statemix.ops.normalise import find_normaliser
from statemix.ops.precision import state_dtype
from statemix.ops.registry import in_transform
from statemix.ops.segments import Sequences, zero_where_masked

LOWEST_INPUT_GATE = -64.0
SATURATING = ("softmax", "sigmoid", "tanh")


class LinearRecurrentUnit(nn.Module, ABC):
    """`W_g`, `W_v` and `W_o` around a state of n × m numbers, written by `rows` rows of m + 1 gates."""

    h0: nn.Parameter | None
    writes_blocks: bool  # a row of gates for each state, or one for each channel
    context: ProcessGroup | None = (
        None  # the ranks that share each sequence, set by `share_sequences`
    )

    def __init__(
        self,
        d_model: int,
        n: int,
        m: int,
        rows: int,
        *,
        gate: str,
        selectivity: str,
        learn_initial_state: bool,
        save_memory: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        find_normaliser(gate)
        if dtype is not None and not dtype.is_floating_point:
            raise TypeError(f"`dtype` must be floating point, got {dtype}.")
        self.d_model, self.state_shape = d_model, (n, m)
        self.gate, self.selectivity, self.save_memory = gate, selectivity, save_memory
        if save_memory and selectivity != "full":
            raise ValueError(
                f"`save_memory` needs selectivity 'full', whose gates it computes twice, got {selectivity!r}."
            )
        self.W_g: Gates = make_gates(selectivity, d_model, rows, m + 1, device=device, dtype=dtype)
        self.W_v = Projection(d_model, rows, bias=False, device=device, dtype=dtype)
        self.W_o = Projection(n * m, d_model, bias=False, device=device, dtype=dtype)
        self.register_parameter(
            "h0",
            nn.Parameter(torch.empty(n, m, device=device, dtype=dtype))
            if learn_initial_state
            else None,
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: N(0, 0.02), gates without bias, so that softmax rows start out uniform."""
        self.W_g.reset_parameters()
        self.W_v.reset_parameters()
        self.W_o.reset_parameters()
        if self.h0 is not None:
            nn.init.normal_(self.h0, std=INIT_STD)

    @torch.no_grad()
    def sharpen(self, factor: float) -> None:
        """Multiply the raw gates: rows come closer to choosing a single entry, and states last longer."""
        if self.gate not in SATURATING:
            raise ValueError(
                f"Only gates that saturate can be sharpened ({', '.join(SATURATING)}), got {self.gate!r}."
            )
        torch._foreach_mul_(linear_parameters(self.W_g), factor)

    @property
    def state_size(self) -> int:
        """Numbers in the state of one sequence: n · m."""
        n, m = self.state_shape
        return n * m

    @abstractmethod
    def scan(
        self,
        gates: Tensor,
        v: Tensor,
        h0: Tensor | None,
        cu_seqlens: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """From gates and values to the states (B, T, n, m) of all steps, and the final ones."""

    def mix(
        self,
        gates: Tensor,
        v: Tensor,
        h0: Tensor | None,
        cu_seqlens: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """From gates and values to outputs and final states: the layer after its first projections."""
        h, state = self.scan(gates, v, h0, cu_seqlens, mask)
        return self.W_o(h.flatten(2)), state

    def trace(
        self, x: Tensor, state: Tensor | None = None, *, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The outputs of `forward`, and the states (B, T, n, m) after every step: any of them can be gone on from."""
        x, h0 = self.enter("x", x, "(B, T, d)", state, None, mask)
        gates, v = self.W_g(x), self.W_v(x)
        dtype = state_dtype(gates, v)
        h, _ = self.scan(gates.to(dtype), v.to(dtype), h0, None, mask)
        return self.W_o(h.flatten(2).to(v.dtype)), h

    def forward_lookup(
        self, table: Tensor, tokens: Tensor, state: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What `forward(table[tokens], state)` gives, with the gates of each row of `table` computed once.

        For a layer whose inputs are embeddings, a vocabulary is often far smaller than a batch.
        """
        self.check_input("table", table, "(V, d)")
        if tokens.dim() != 2 or tokens.dtype not in (torch.int32, torch.int64):
            raise TypeError(
                f"`tokens` must be integers with the axes (B, T), got {tokens.dtype} of the shape {tuple(tokens.shape)}."
            )
        if (
            is_autocast(table) or table.dtype.itemsize < 4
        ):  # torch would add up the gradients of a row's many uses in half precision
            return cast(tuple[Tensor, Tensor], self(F.embedding(tokens, table), state))
        _, h0 = self.enter(
            "table", table[:1].expand(tokens.shape[0], -1).unsqueeze(1), "(B, T, d)", state
        )
        if self.is_one_op(table, tokens):
            return self.as_one_op(Inputs(table, tokens), h0, Sequences())
        gates, v = self.W_g(table), self.W_v(table)
        return self.mix(
            F.embedding(tokens, gates.flatten(1)).unflatten(2, gates.shape[1:]),
            F.embedding(tokens, v),
            h0,
            None,
            None,
        )

    def is_one_op(self, x: Tensor, tokens: Tensor | None = None) -> bool:
        """Whether `recurrent_layer` computes the layer: with a kernel for it, or to save memory."""
        if is_autocast(x) or not self.is_alone():
            return False
        has_kernel = find_layer_kernel(x, self.state_shape[1]) is not None
        if (
            has_kernel
            and self.gate == "softmax"
            and not torch.compiler.is_compiling()
            and not self.is_fit_for_differences()
        ):
            return False
        return self.save_memory or (
            has_kernel and is_worthwhile(Inputs(x, tokens).steps, self.W_g.weight)
        )

    def is_alone(self) -> bool:
        """Whether nobody listens at a projection, or has put another in its place, or shares sequences; else each is called by itself."""
        if self.context is not None or in_transform() or _has_any_global_hook():
            return False
        if any(
            method.__module__.partition(".")[0] != "statemix"
            for method in (type(self).scan, type(self).mix)
        ):
            return False
        biases = (
            (self.W_g.bias is not None, self.W_v.bias is None, self.W_o.bias is None)
            if isinstance(self.W_g, FullGates)
            else (False,)
        )
        return (
            all(biases)
            and is_plain(self.W_g, FullGates)
            and is_plain(self.W_v, Projection)
            and is_plain(self.W_o, Projection)
        )

    def one_by_one(
        self, x: Tensor, h0: Tensor | None, cu_seqlens: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """(y, state) from projections, scan and readout, each by itself; to save memory, computed again in the backward pass."""

        def compute(x: Tensor, h0: Tensor | None) -> tuple[Tensor, Tensor]:
            return self.mix(self.W_g(x), self.W_v(x), h0, cu_seqlens, mask)

        if self.save_memory and torch.is_grad_enabled() and self.is_alone():
            return cast(
                tuple[Tensor, Tensor],
                checkpoint(compute, x, h0, use_reentrant=False, preserve_rng_state=False),
            )
        return compute(x, h0)

    def is_fit_for_differences(self) -> bool:
        """Whether gates can be told by their differences from the input's, as kernels do: not if it is far below, and rounds them away."""
        c = cast(FullGates, self.W_g).bias.detach()
        return c.numel() == 0 or bool(
            c.view(-1, self.state_shape[1] + 1)[:, -1].amin() >= LOWEST_INPUT_GATE
        )

    def as_one_op(
        self, inputs: Inputs, h0: Tensor | None, sequences: Sequences
    ) -> tuple[Tensor, Tensor]:
        """(y, state) from `recurrent_layer`; gates are kept only if a backward pass will want them."""
        full = cast(FullGates, self.W_g)
        weights = Weights(full.weight, full.bias, self.W_v.weight, self.W_o.weight)
        differentiable = torch.is_grad_enabled() and any(
            y is not None and y.requires_grad for y in (inputs.x, h0, *weights)
        )
        keep = differentiable and not self.save_memory
        return recurrent_layer(
            inputs, weights, h0, sequences, self.gate, block=self.writes_blocks, keep=keep
        )

    def enter(
        self,
        name: str,
        x: Tensor,
        axes: str,
        state: Tensor | None,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Check the input `x`, called `name`; return it with zeros where masked, and the state to start from, if not zero.

        Zeros, because what stands at a masked step, NaN perhaps, must not reach the gradients of the weights.
        """
        self.check_input(name, x, axes)
        if cu_seqlens is not None:
            check_cu_seqlens(cu_seqlens, x.shape[0])
        if mask is not None:
            check_mask(mask, *x.shape[:2])
            check_device("mask", mask, name, x)
        expected = (Sequences(cu_seqlens).count(x), *self.state_shape)
        if state is not None:
            check_state("state", state, expected, f"`{name}`, whose shape is {tuple(x.shape)}")
            check_device("state", state, name, x)
        elif self.h0 is not None:
            state = self.h0.expand(expected)
        return zero_where_masked(x, mask), state

    def check_input(self, name: str, x: Tensor, axes: str) -> None:
        """`x` has the axes spelt by `axes`, the last of them d_model wide, and the layer's dtype."""
        check_floating(name, x)
        if x.dim() != axes.count(",") + 1 or x.shape[-1] != self.d_model:
            raise ValueError(
                f"`{name}` must have the axes {axes} with d = {self.d_model}, got the shape {tuple(x.shape)}."
            )
        dtype = self.W_v.weight.dtype
        if x.dtype != dtype and not is_autocast(x):
            raise TypeError(
                f"`{name}` must have the dtype of the layer, {dtype}, got {x.dtype}. Convert one of them with .to(), or use autocast."
            )


def is_autocast(x: Tensor) -> bool:
    """Whether autocast is on for the device of `x`; some devices have none."""
    return torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(
        x.device.type
    )


def is_plain(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether `module` is exactly a `kind`, with plain parameters and without hooks."""
    hooks = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    heard = any(hooks) or "forward" in vars(module)
    return (
        type(module) is kind
        and not heard
        and all(type(p) is nn.Parameter for p in module.parameters())
    )


def check_sizes(sizes: dict[str, int]) -> None:
    """Every size that a layer is built with is at least one."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool):
            raise ValueError(f"`{name}` must be a whole number, got {size!r}.")
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, got {size}.")
