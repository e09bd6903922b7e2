"""A recurrent layer as one op: projections, gates, scan and readout.

    gates[t] = W_g x[t] + c,    v[t] = W_v x[t],    s = scan(gates, v, h0),    y[t] = W_o s[t]

Inside one op the gates are the op's own business: a kernel may want them in another order, and need not keep them.  With `keep`
false nothing but states is saved for the backward pass, which computes the gates again, a stretch of time after the other.

    y, final, *saved = statemix::recurrent_layer(x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, keep)

With `tokens` (B, T), x is a table (V, d) in which they are looked up: its gates are computed once for each of its rows.

`block` chooses the block recurrence, or else the companion one, whose readout sees its last m outputs.  The body here serves every
device and dtype, always without keeping.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops.expanded import expanded_companion_scan
from statemix.ops.gated import gated_block_scan
from statemix.ops.precision import state_dtype
from statemix.ops.registry import OPS, define_gradient, define_op, in_transform
from statemix.ops.segments import Sequences

STEPS = 4096  # of all sequences together in a stretch of the plain body
WORTHWHILE = (
    1 << 20
)  # gates from which one op is faster: below it, bringing the weights into a kernel's order costs more than it saves


class Weights(NamedTuple):
    """The parameters of a layer, in the paper's order."""

    W_g: Tensor
    c: Tensor
    W_v: Tensor
    W_o: Tensor

    def state_shape(self, block: bool) -> tuple[int, int]:
        """(n, m), from the number of gates for each v."""
        m = self.W_g.shape[0] // self.W_v.shape[0] - 1
        return self.W_v.shape[0] // (m if block else 1), m


class Inputs(NamedTuple):
    """What the layer reads: x (B, T, d), or the rows of a table x (V, d) that `tokens` (B, T) name."""

    x: Tensor
    tokens: Tensor | None = None

    @property
    def steps(self) -> Tensor:
        """A tensor whose first two axes are B and T."""
        return self.x if self.tokens is None else self.tokens

    def at(self, steps: slice) -> "Inputs":
        """A stretch of time."""
        return (
            Inputs(self.x[:, steps])
            if self.tokens is None
            else Inputs(self.x, self.tokens[:, steps])
        )

    def look_up(self, y: Tensor) -> Tensor:
        """What was computed from x, at every step."""
        return y if self.tokens is None else F.embedding(self.tokens, y)


def recurrent_layer(
    inputs: Inputs,
    weights: Weights,
    h0: Tensor | None,
    sequences: Sequences,
    gate: str,
    *,
    block: bool,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    """(y, final state) of a layer, from inputs that the layer has checked."""
    if in_transform():
        return reference(inputs, weights, h0, sequences, gate, block)
    y, final, *_ = torch.ops.statemix.recurrent_layer(
        *inputs, *weights, h0, sequences.cu_seqlens, sequences.mask, gate, block, keep
    )
    return y, final


@dataclass(frozen=True)
class LayerKernel:
    """Up to which m a device's kernel computes whole layers in float32, and the shapes of what it saves for the backward pass."""

    max_size: int
    saved_shapes: Callable[
        [Inputs, Weights, Sequences, str, bool, bool], tuple[tuple[int, ...], ...]
    ]


LAYER_KERNELS: dict[str, LayerKernel] = {}


def find_layer_kernel(x: Tensor, m: int) -> LayerKernel | None:
    """The kernel for a layer of this size on inputs like `x`, if there is one."""
    kernel = LAYER_KERNELS.get(x.device.type)
    return (
        kernel if kernel is not None and x.dtype == torch.float32 and m <= kernel.max_size else None
    )


def is_worthwhile(steps: Tensor, W_g: Tensor) -> bool:
    """Whether `steps` (B, T, ..) are enough for a layer's kernel; compiled code, which may see any length, does not ask."""
    return (
        torch.compiler.is_compiling()
        or steps.shape[0] * steps.shape[1] * W_g.shape[0] >= WORTHWHILE
    )


def reference(
    inputs: Inputs,
    weights: Weights,
    h0: Tensor | None,
    sequences: Sequences,
    gate: str,
    block: bool,
) -> tuple[Tensor, Tensor]:
    """The same in differentiable torch and scans."""
    W_g, c, W_v, W_o = weights
    gates, v = inputs.look_up(F.linear(inputs.x, W_g, c)), inputs.look_up(F.linear(inputs.x, W_v))
    cu_seqlens, mask, _ = sequences
    n, m = weights.state_shape(block)
    if block:
        gates, v = gates.unflatten(2, (n, m, m + 1)), v.unflatten(2, (n, m))
        s, final = gated_block_scan(gates, v, h0, gate=gate, cu_seqlens=cu_seqlens, mask=mask)
    else:
        s, final = expanded_companion_scan(
            gates.unflatten(2, (n, m + 1)), v, h0, gate=gate, cu_seqlens=cu_seqlens, mask=mask
        )
    return F.linear(s.flatten(2), W_o), final


class Stretch(NamedTuple):
    """A stretch of time: its steps, and what of each sequence falls into it."""

    steps: slice
    sequences: Sequences


def stretches(steps_of: Tensor, sequences: Sequences) -> list[Stretch]:
    """Cut time so that a stretch holds about STEPS steps of all sequences together."""
    B, T = steps_of.shape[:2]
    length = max(1, STEPS // max(B, 1))
    cu_seqlens, mask, _ = sequences
    pieces = []
    for a in range(0, T, length):
        steps = slice(a, min(a + length, T))
        own = None if cu_seqlens is None else cu_seqlens.clamp(a, steps.stop) - a
        pieces.append(
            Stretch(steps, Sequences(own, None if mask is None else mask[:, steps].contiguous()))
        )
    return pieces


def _body(x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, keep):
    inputs, weights, sequences = (
        Inputs(x, tokens),
        Weights(W_g, c, W_v, W_o),
        Sequences(cu_seqlens, mask),
    )
    shape = (sequences.count(inputs.steps), *weights.state_shape(block))
    state = (
        x.new_zeros(shape, dtype=state_dtype(x)) if h0 is None else h0.to(state_dtype(x), copy=True)
    )
    y, entries = x.new_empty((*inputs.steps.shape[:2], W_o.shape[0])), []
    for steps, own in stretches(inputs.steps, sequences):
        entries.append(state)
        y[:, steps], state = reference(inputs.at(steps), weights, state, own, gate, block)
    return (
        y,
        state,
        state.new_empty(0),
        state.new_empty(0),
        torch.stack(entries) if entries else state.new_empty((0, *shape)),
    )


def _body_backward(
    dy, dfinal, x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, gates, h, entries
):
    inputs, weights, sequences = (
        Inputs(x, tokens),
        Weights(W_g, c, W_v, W_o),
        Sequences(cu_seqlens, mask),
    )
    dx, dstate = x.new_zeros(x.shape), dfinal.clone(memory_format=torch.contiguous_format)
    totals = [w.new_zeros(w.shape, dtype=state_dtype(w)) for w in weights]
    for (steps, own), entry in reversed(
        list(zip(stretches(inputs.steps, sequences), entries.unbind(0), strict=True))
    ):
        part = inputs.at(steps)
        with torch.enable_grad():
            leaves = [y.detach().requires_grad_() for y in (part.x, *weights, entry)]
            outputs = reference(
                Inputs(leaves[0], part.tokens), Weights(*leaves[1:5]), leaves[5], own, gate, block
            )
        dpart, *parts, dstate = torch.autograd.grad(outputs, leaves, (dy[:, steps], dstate))
        Inputs(dx, tokens).at(steps).x.add_(dpart)
        torch._foreach_add_(totals, parts)
    return dx, *totals, dstate


def _saved_shapes(
    inputs: Inputs, weights: Weights, sequences: Sequences, gate: str, block: bool, keep: bool
) -> tuple[tuple[int, ...], ...]:
    B, T = inputs.steps.shape[:2]
    count = len(range(0, T, max(1, STEPS // max(B, 1))))
    return (0,), (0,), (count, sequences.count(inputs.steps), *weights.state_shape(block))


def _fake(x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, keep):
    inputs, weights, sequences = (
        Inputs(x, tokens),
        Weights(W_g, c, W_v, W_o),
        Sequences(cu_seqlens, mask),
    )
    n, m = weights.state_shape(block)
    kernel = find_layer_kernel(x, m)
    shapes = _saved_shapes if kernel is None else kernel.saved_shapes
    y = x.new_empty((*inputs.steps.shape[:2], W_o.shape[0]))
    final = x.new_empty((sequences.count(inputs.steps), n, m), dtype=state_dtype(x))
    return (
        y,
        final,
        *(
            final.new_empty(shape)
            for shape in shapes(inputs, weights, sequences, gate, block, keep)
        ),
    )


def _backward_fake(
    dy, dfinal, x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, gates, h, entries
):
    total = [w.new_empty(w.shape, dtype=state_dtype(w)) for w in (W_g, c, W_v, W_o)]
    return x.new_empty(x.shape), *total, dfinal.new_empty(dfinal.shape)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.gate, ctx.block, _ = inputs
    ctx.mark_non_differentiable(*output[2:])
    ctx.set_materialize_grads(
        False
    )  # or zeros as large as the gates would be made for what is not differentiable
    ctx.final = output[1].shape, output[1].dtype
    ctx.save_for_backward(*tensors, *output[2:])


def _backward(ctx, dy, dfinal, *_):
    x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, *saved = ctx.saved_tensors
    inputs = (x, tokens, W_g, c, W_v, W_o, h0)
    shape, dtype = ctx.final
    dy = x.new_zeros((*Inputs(x, tokens).steps.shape[:2], W_o.shape[0])) if dy is None else dy
    dfinal = x.new_zeros(shape, dtype=dtype) if dfinal is None else dfinal
    wanted = [i for i, y in enumerate(inputs) if y is not None and ctx.needs_input_grad[i]]
    if torch.is_grad_enabled():
        own = [
            y.view_as(y) if i in wanted else y for i, y in enumerate(inputs)
        ]  # h0 may come from x: a view keeps the way there out
        outputs = reference(
            Inputs(*own[:2]),
            Weights(*own[2:6]),
            own[6],
            Sequences(cu_seqlens, mask),
            ctx.gate,
            ctx.block,
        )
        some = torch.autograd.grad(
            outputs, [own[i] for i in wanted], (dy, dfinal), create_graph=True, allow_unused=True
        )
        gradients = dict(zip(wanted, some, strict=True))
    else:
        arguments = (dy, dfinal, *inputs, cu_seqlens, mask, ctx.gate, ctx.block, *saved)
        dx, *others = torch.ops.statemix.recurrent_layer_backward(*arguments)
        gradients = {0: dx, **dict(enumerate(others, 2))}  # tokens, number 1, have none
    each = [
        gradients[i].to(inputs[i].dtype) if i in wanted and gradients[i] is not None else None
        for i in range(len(inputs))
    ]
    return *each, *[None] * 5


ARGUMENTS = (
    "Tensor x, Tensor? tokens, Tensor W_g, Tensor c, Tensor W_v, Tensor W_o, Tensor? h0, "
    "Tensor? cu_seqlens, Tensor? mask, str gate, bool block"
)
define_op(
    "recurrent_layer",
    f"({ARGUMENTS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _body,
    _fake,
)
define_op(
    "recurrent_layer_backward",
    f"(Tensor dy, Tensor dfinal, {ARGUMENTS}, Tensor gates, Tensor h, Tensor entries) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    _body_backward,
    _backward_fake,
)
define_gradient("recurrent_layer", _backward, _setup_context)
OPS.extend(["recurrent_layer", "recurrent_layer_backward"])
