"""How a layer runs: as one op, by lookup, recomputed in the backward pass, split over ranks, or line by line.

Every choice is made here, from tensors alone.  `fused_layer` returns None if the layer should run its own lines.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from statemix.kernels.calls import Recurrence, Weights
from statemix.ops.dispatch.layer_op import (
    Inputs,
    LayerCall,
    find_layer_kernel,
    recurrent_layer,
    reference,
)
from statemix.ops.dispatch.registry import Pair, in_transform
from statemix.ops.expanded import expanded_companion_scan
from statemix.ops.gated import gated_block_scan
from statemix.ops.lookup import Lookup, gather
from statemix.ops.precision import is_autocast
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
    """(y, final state) of a layer in one op, or recomputed in the backward pass to save memory; None if neither applies."""
    if weights is None or group is not None or in_transform():
        return None
    inputs = Inputs(*x) if isinstance(x, Lookup) else Inputs(x)
    call = LayerCall(inputs, weights, h0, sequences, gate, recurrence, read_from)
    if runs_as_one_op(call, save_memory=save_memory):
        return recurrent_layer(call, keep=_needs_gradient(call) and not save_memory)
    if save_memory and torch.is_grad_enabled() and inputs.tokens is None:
        return _recompute(call)
    return None


def runs_as_one_op(call: LayerCall, *, save_memory: bool) -> bool:
    """True if `recurrent_layer` computes the layer: it has a kernel and enough steps, or saves memory."""
    if call.sequences.reverse or is_autocast(call.inputs.x):
        return False
    has_kernel = find_layer_kernel(call) is not None
    if not (save_memory or (has_kernel and _is_worthwhile(call))):
        return False
    return not has_kernel or call.gate != "softmax" or _has_moderate_input_gates(call.weights)


def _is_worthwhile(call: LayerCall) -> bool:
    """True if there are enough steps for a layer's kernel; compiled code, which may see any length, does not ask."""
    B, T = call.inputs.steps.shape[:2]
    return torch.compiler.is_compiling() or B * T * call.weights.W_g.shape[0] >= WORTHWHILE


def _has_moderate_input_gates(weights: Weights) -> bool:
    """True if kernels can take softmax gates as differences from the input's gate, which must not round the others away."""
    if torch.compiler.is_compiling() or weights.c.numel() == 0:
        return True
    lowest = weights.c.detach().view(-1, weights.m + 1)[:, -1].amin()
    return bool(lowest >= LOWEST_INPUT_GATE)


def _needs_gradient(call: LayerCall) -> bool:
    """True if a backward pass may need the gates."""
    tensors = (call.inputs.x, call.h0, *call.weights)
    return torch.is_grad_enabled() and any(y is not None and y.requires_grad for y in tensors)


def _recompute(call: LayerCall) -> Pair:
    """The layer in plain torch and scans, with nothing kept for the backward pass but its inputs."""

    def compute(x: Tensor, h0: Tensor | None) -> Pair:
        return reference(call._replace(inputs=Inputs(x), h0=h0))

    outputs = checkpoint(
        compute, call.inputs.x, call.h0, use_reentrant=False, preserve_rng_state=False
    )
    return cast(Pair, outputs)


def lookup_pays(rows: int, tokens: Tensor) -> bool:
    """True if looking up the gates of a table's rows is faster than computing those of every token."""
    return tokens.numel() >= FEW * rows


def resolve(x: Tensor | Lookup, mask: Tensor | None) -> Tensor | Lookup:
    """`x` with zeros at masked steps, where a NaN must not reach the gradients of the weights.

    A lookup stays one if it has no mask and full precision: half precision would sum the gradients of a row's many uses.
    """
    if isinstance(x, Lookup) and mask is None:
        half = is_autocast(x.table) or x.table.dtype.itemsize < 4
        return gather(x) if half else x
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
