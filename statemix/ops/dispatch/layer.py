"""The choice of how a layer runs.

A layer can run as one op, look up its gates in a table, recompute them in the backward pass, be
split over ranks, or run the lines of its `forward` one by one. Every choice is made here, from
tensors alone. `fused_layer` returns None if the layer should run the lines of its `forward`.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from statemix.kernels.calls import Recurrence, Weights
from statemix.ops.dispatch.layer_call import Inputs, LayerCall, find_layer_kernel
from statemix.ops.dispatch.layer_op import recurrent_layer, reference
from statemix.ops.dispatch.registry import Pair, in_transform
from statemix.ops.expanded import expanded_companion_scan
from statemix.ops.gated import gated_block_scan
from statemix.ops.lookup import Lookup, gather
from statemix.ops.precision import cast_under_autocast, is_autocast, without_autocast
from statemix.ops.segments import Sequences, zero_where_masked

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = [
    "Recurrence",
    "Weights",
    "fused_layer",
    "lookup_pays",
    "resolve",
    "runs_as_one_op",
    "scan_blocks",
    "scan_channels",
]

FEW = 4  # tokens per row of a table from which a lookup of gates pays
WORTHWHILE = 1 << 20  # gates from which one op is faster: below, packing the weights costs more
LOWEST_INPUT_GATE = -64.0


def fused_layer(
    x: Tensor | Lookup,
    weights: Weights | None,
    h0: Tensor | None,
    sequences: Sequences,
    *,
    recurrence: Recurrence,
    gate: str,
    save_memory: bool = False,
    group: "ProcessGroup | None" = None,
    read_from: int = 0,
) -> Pair | None:
    """(y, final state) of a layer; None if the layer should run the lines of its `forward`.

    The layer runs as one op or, to save memory, is recomputed in the backward pass.
    """
    if weights is None or group is not None or in_transform():
        return None
    inputs = Inputs(*x) if isinstance(x, Lookup) else Inputs(x)
    call = LayerCall(inputs, weights, h0, sequences, gate, recurrence, read_from)
    lowered = _under_autocast(call)
    if runs_as_one_op(lowered, save_memory=save_memory):
        with without_autocast(inputs.x.device) if is_autocast(inputs.x) else nullcontext():
            return recurrent_layer(lowered, keep=_needs_gradient(call) and not save_memory)
    if save_memory and torch.is_grad_enabled() and inputs.tokens is None:
        return _recompute(call)
    return None


def runs_as_one_op(call: LayerCall, *, save_memory: bool) -> bool:
    """True if `recurrent_layer` computes the layer.

    It does if it has a kernel and there are enough steps, or to save memory.
    """
    if call.sequences.reverse:
        return False
    has_kernel = find_layer_kernel(call) is not None
    if not (save_memory or (has_kernel and _is_worthwhile(call))):
        return False
    return not has_kernel or call.gate != "softmax" or _has_moderate_input_gates(call.weights)


def _under_autocast(call: LayerCall) -> LayerCall:
    """The call with x in autocast's dtype, which is then that of all products."""
    (x,) = cast_under_autocast(call.inputs.x)
    return call._replace(inputs=call.inputs._replace(x=x))


def _is_worthwhile(call: LayerCall) -> bool:
    """True if there are enough steps for a layer's kernel.

    Compiled code skips this check because it may run on sequences of any length.
    """
    B, T = call.inputs.steps.shape[:2]
    return torch.compiler.is_compiling() or B * T * call.weights.W_g.shape[0] >= WORTHWHILE


def _has_moderate_input_gates(weights: Weights) -> bool:
    """True if subtracting the input gates does not round the other gates away.

    Kernels compute softmax gates from their differences to the input gate.
    """
    if torch.compiler.is_compiling() or weights.c.numel() == 0:
        return True
    lowest = weights.c.detach().view(-1, weights.m + 1)[:, -1].amin()
    return bool(lowest >= LOWEST_INPUT_GATE)


def _needs_gradient(call: LayerCall) -> bool:
    """True if a backward pass may need the gates."""
    tensors = (call.inputs.x, call.h0, *call.weights)
    return torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in tensors)


def _recompute(call: LayerCall) -> Pair:
    """The layer in plain torch and scans, which keeps only its inputs for the backward pass."""

    def compute(x: Tensor, h0: Tensor | None) -> Pair:
        return reference(call._replace(inputs=Inputs(x), h0=h0))

    outputs = checkpoint(
        compute, call.inputs.x, call.h0, use_reentrant=False, preserve_rng_state=False
    )
    return cast(Pair, outputs)


def lookup_pays(rows: int, tokens: Tensor) -> bool:
    """True if looking up the gates of table rows is faster than computing them for every token."""
    return tokens.numel() >= FEW * rows


def resolve(x: Tensor | Lookup, mask: Tensor | None) -> Tensor | Lookup:
    """`x` with zeros at masked steps, where a NaN must not reach the gradients of the weights.

    A lookup is gathered if there is a mask.
    """
    if isinstance(x, Lookup) and mask is None:
        return x
    return zero_where_masked(gather(x), mask)


def scan_blocks(
    gates: Tensor,
    v: Tensor,
    h0: Tensor | None,
    sequences: Sequences,
    *,
    gate: str,
    group: "ProcessGroup | None",
) -> Pair:
    """`gated_block_scan` on one rank, or over the ranks of `group`."""
    options = sequences._asdict()
    if group is None:
        return gated_block_scan(gates, v, h0, gate=gate, **options)
    from statemix.ops import context  # imports torch._dynamo, which takes a second

    return context.gated_block_scan(gates, v, h0, gate=gate, group=group, **options)


def scan_channels(
    gates: Tensor,
    v: Tensor,
    h0: Tensor | None,
    sequences: Sequences,
    *,
    gate: str,
    form: str,
    group: "ProcessGroup | None",
) -> Pair:
    """`expanded_companion_scan` on one rank, or over the ranks of `group`."""
    options = sequences._asdict()
    if group is None:
        return expanded_companion_scan(gates, v, h0, gate=gate, form=form, **options)
    from statemix.ops import context

    return context.expanded_companion_scan(
        gates, v, h0, gate=gate, form=form, group=group, **options
    )
