"""A recurrent layer as one op: projections, gates, scan and readout.

    gates[t] = W_g x[t] + c,    v[t] = W_v x[t],    s = scan(gates, v, h0),    y[t] = W_o s[t]

The gates never leave the op, so a kernel may store them in any order and need not keep them. If
`keep` is false, only states are saved for the backward pass, which recomputes the gates in chunks
along the time axis.

    y, final, *saved = statemix::recurrent_layer(
        x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, read_from, keep)

With `tokens` (B, T), x is a table (V, d) whose rows they name: the gates are computed once per row.
The outputs are those of the steps `read_from` .. T − 1; W_o is not applied to earlier steps.

`block` selects the block recurrence. Otherwise the companion recurrence runs, and the readout sees
its last m outputs. The dtype of x is that of the products and of y: weights in a wider dtype are
rounded to it, but their gradients are not. The implementation in this file runs on every device and
dtype, and never keeps gates.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.kernels.calls import Weights
from statemix.ops.dispatch.layer_call import Inputs, LayerCall, find_layer_kernel, layer_call
from statemix.ops.dispatch.registry import OPS, Pair, define_gradient, define_op, in_transform
from statemix.ops.expanded import expanded_companion_scan
from statemix.ops.gated import gated_block_scan
from statemix.ops.precision import state_dtype
from statemix.ops.segments import Sequences, checked_bounds

__all__ = ["body", "body_backward", "recurrent_layer", "reference"]

STEPS = 4096  # per chunk of the plain body, over all sequences


def recurrent_layer(call: LayerCall, *, keep: bool) -> Pair:
    """(y, final state) of a layer, from inputs that the layer has checked."""
    if in_transform():
        return reference(call)
    inputs, weights, h0, (cu_seqlens, mask, _), gate, recurrence, read_from = call
    y, final, *_ = torch.ops.statemix.recurrent_layer(
        *inputs, *weights, h0, cu_seqlens, mask, gate, recurrence.is_block, read_from, keep
    )
    return y, final


def reference(call: LayerCall) -> Pair:
    """The same in differentiable torch and scans."""
    inputs, weights, h0, sequences, gate, recurrence, read_from = call
    W_g, c, W_v, W_o = (w.to(inputs.x.dtype) for w in weights)
    gates = inputs.look_up(F.linear(inputs.x, W_g, c))
    v = inputs.look_up(F.linear(inputs.x, W_v))
    n, m = call.weights.state_shape(recurrence)
    options = sequences._asdict()
    if recurrence.is_block:
        gates = gates.unflatten(2, (n, m, m + 1))
        s, final = gated_block_scan(gates, v.unflatten(2, (n, m)), h0, gate=gate, **options)
    else:
        gates = gates.unflatten(2, (n, m + 1))
        s, final = expanded_companion_scan(gates, v, h0, gate=gate, **options)
    return F.linear(s[:, read_from:].flatten(2), W_o), final


def _chunk_length(steps: Tensor) -> int:
    """Steps of a chunk, so that it holds about STEPS steps of all sequences together."""
    return max(1, STEPS // max(steps.shape[0], 1))


def _chunks(call: LayerCall) -> Iterator[tuple[slice, slice, LayerCall]]:
    """Cut a call into chunks along the time axis.

    Each chunk consists of its steps, its outputs, and the call restricted to it.
    """
    length = _chunk_length(call.inputs.steps)
    T = call.inputs.steps.shape[1]
    cu_seqlens, mask, _ = call.sequences
    if cu_seqlens is not None:
        checked_bounds(cu_seqlens, T)
    for start in range(0, T, length):
        steps = slice(start, min(start + length, T))
        bounds = None if cu_seqlens is None else cu_seqlens.clamp(start, steps.stop) - start
        real = None if mask is None else mask[:, steps].contiguous()
        part = call._replace(
            inputs=call.inputs.at(steps),
            sequences=Sequences(bounds, real),
            read_from=min(max(call.read_from - start, 0), steps.stop - start),
        )
        read = slice(*(max(step - call.read_from, 0) for step in (start, steps.stop)))
        yield steps, read, part


def body(*arguments):
    call = layer_call(*arguments[:-1])
    x = call.inputs.x
    state = x.new_zeros(call.states_shape, dtype=state_dtype(x))
    if call.h0 is not None:
        state.copy_(call.h0)
    y = x.new_empty(call.output_shape)
    entries = []
    for _, read, part in _chunks(call):
        entries.append(state)
        y[:, read], state = reference(part._replace(h0=state))
    stacked = torch.stack(entries) if entries else state.new_empty((0, *call.states_shape))
    return y, state, x.new_empty(0), state.new_empty(0), stacked


def body_backward(dy, dfinal, *arguments):
    *call_arguments, _, _, entries = arguments
    call = layer_call(*call_arguments)
    x, tokens = call.inputs
    dx = x.new_zeros(x.shape)
    dstate = dfinal.clone(memory_format=torch.contiguous_format)
    totals = [w.new_zeros(w.shape, dtype=state_dtype(w)) for w in call.weights]
    chunks = list(zip(_chunks(call), entries.unbind(0), strict=True))
    for (steps, read, part), entry in reversed(chunks):
        with torch.enable_grad():
            tensors = (part.inputs.x, *part.weights, entry)
            own, *weights, h0 = leaves = [y.detach().requires_grad_() for y in tensors]
            inputs = part.inputs._replace(x=own)
            outputs = reference(part._replace(inputs=inputs, weights=Weights(*weights), h0=h0))
        dpart, *parts, dstate = torch.autograd.grad(outputs, leaves, (dy[:, read], dstate))
        Inputs(dx, tokens).at(steps).x.add_(dpart)
        torch._foreach_add_(totals, parts)
    return dx, *totals, dstate


def _saved_shapes(call: LayerCall, keep: bool) -> tuple[tuple[int, ...], ...]:
    steps = call.inputs.steps
    count = len(range(0, steps.shape[1], _chunk_length(steps)))
    return (0,), (0,), (count, *call.states_shape)


def _fake(*arguments):
    *call_arguments, keep = arguments
    call = layer_call(*call_arguments)
    kernel = find_layer_kernel(call)
    shapes = (_saved_shapes if kernel is None else kernel.saved_shapes)(call, keep)
    x = call.inputs.x
    y = x.new_empty(call.output_shape)
    final = x.new_empty(call.states_shape, dtype=state_dtype(x))
    gates, h, entries = shapes
    return y, final, x.new_empty(gates), final.new_empty(h), final.new_empty(entries)


def _backward_fake(dy, dfinal, *arguments):
    call = layer_call(*arguments[:-3])
    x = call.inputs.x
    total = [w.new_empty(w.shape, dtype=state_dtype(w)) for w in call.weights]
    return x.new_empty(x.shape), *total, dfinal.new_empty(dfinal.shape)


def _setup_context(ctx, inputs, output):
    *tensors, ctx.gate, ctx.block, ctx.read_from, _ = inputs
    ctx.mark_non_differentiable(*output[2:])
    # Or torch would allocate zero gradients, as large as the gates, for outputs that have none.
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output[2:])


def _backward(ctx, dy, dfinal, *_):
    *tensors, gates, h, entries = ctx.saved_tensors
    arguments = (*tensors, ctx.gate, ctx.block, ctx.read_from)
    call = layer_call(*arguments)
    inputs = tensors[:7]
    x = call.inputs.x
    dy = x.new_zeros(call.output_shape) if dy is None else dy
    if dfinal is None:
        dfinal = x.new_zeros(call.states_shape, dtype=state_dtype(x))
    wanted = [i for i, y in enumerate(inputs) if y is not None and ctx.needs_input_grad[i]]
    if torch.is_grad_enabled():
        gradients = _differentiable_gradients(call, wanted, dy, dfinal)
    else:
        dx, *others = torch.ops.statemix.recurrent_layer_backward(
            dy, dfinal, *arguments, gates, h, entries
        )
        gradients = {0: dx, **dict(enumerate(others, 2))}  # tokens, input 1, have no gradient
    found = {i: gradients[i].to(inputs[i].dtype) for i in wanted if gradients[i] is not None}
    return *(found.get(i) for i in range(7)), *[None] * 6


def _differentiable_gradients(
    call: LayerCall, wanted: list[int], dy: Tensor, dfinal: Tensor
) -> dict[int, Tensor]:
    """The gradients of the wanted inputs, with a graph.

    `wanted` contains positions in the list x, tokens, W_g, c, W_v, W_o, h0.
    """
    inputs = (*call.inputs, *call.weights, call.h0)
    # h0 may depend on x: a view of each input cuts the path from one to the other.
    views = {i: y.view_as(y) for i, y in enumerate(inputs) if y is not None and i in wanted}
    own = (views.get(i, y) for i, y in enumerate(inputs))
    cu_seqlens, mask, _ = call.sequences
    arguments = (*own, cu_seqlens, mask, call.gate, call.recurrence.is_block, call.read_from)
    outputs = reference(layer_call(*arguments))
    found = torch.autograd.grad(
        outputs, list(views.values()), (dy, dfinal), create_graph=True, allow_unused=True
    )
    return dict(zip(views, found, strict=True))


ARGUMENTS = (
    "Tensor x, Tensor? tokens, Tensor W_g, Tensor c, Tensor W_v, Tensor W_o, Tensor? h0, "
    "Tensor? cu_seqlens, Tensor? mask, str gate, bool block, SymInt read_from"
)
define_op(
    "recurrent_layer",
    f"({ARGUMENTS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    body,
    _fake,
)
define_op(
    "recurrent_layer_backward",
    f"(Tensor dy, Tensor dfinal, {ARGUMENTS}, Tensor gates, Tensor h, Tensor entries)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    body_backward,
    _backward_fake,
)
define_gradient("recurrent_layer", _backward, _setup_context)
OPS.extend(["recurrent_layer", "recurrent_layer_backward"])
