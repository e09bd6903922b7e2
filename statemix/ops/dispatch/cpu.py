"""The compiled scans and layers on the CPU, up to the largest m of the library."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from statemix.kernels.calls import ScanCall
from statemix.kernels.cpu import layer, pool, scans
from statemix.kernels.cpu.library import Library, Missing, load
from statemix.kernels.lanes import sizes_of
from statemix.kernels.switch import SWITCH
from statemix.ops.dispatch import layer_op
from statemix.ops.dispatch.cpu_check import disagreement
from statemix.ops.dispatch.layer_call import (
    LAYER_KERNELS,
    LayerCall,
    LayerKernel,
    find_layer_kernel,
    layer_call,
)
from statemix.ops.dispatch.registry import OPS, Gradients, Pair, register_kernel, withdraw
from statemix.ops.dispatch.scans import Scans, register_scans
from statemix.ops.segments import checked_bounds

__all__ = ["describe", "find_library", "install"]


def install() -> None:
    """Register the compiled scans and layers on the CPU, or warn that there are none."""
    library = find_library()
    if isinstance(library, Missing):
        _do_without(library)
        return
    label = f"C++, {library.instruction_set}"
    register_scans("cpu", _scans_of(library), label)
    register_kernel("recurrent_layer", "cpu", _layer_forward(library), label)
    register_kernel("recurrent_layer_backward", "cpu", _layer_backward(library), label)
    gates = frozenset(gate for gate in scans.SUPPORTED_GATES if gate is not None)
    LAYER_KERNELS["cpu"] = LayerKernel(library.max_size, gates, _saved_shapes)


@cache
def find_library() -> Library | Missing:
    """The library, if it loads and computes the same as plain torch."""
    library = load()
    if isinstance(library, Missing):
        return library
    problem = disagreement(library)
    return Missing(f"{library.path.name} failed its self-check: {problem}") if problem else library


def describe() -> str:
    """The compiled library in use, or the reason why there is none."""
    library = find_library()
    if isinstance(library, Missing):
        return library.reason
    facts = (library.path.name, f"instruction set {library.instruction_set}", library.threads)
    return ", ".join((*facts, f"m up to {library.max_size}"))


def _do_without(missing: Missing) -> None:
    """Record why plain torch computes all ops, and warn unless the user chose so."""
    for name in OPS:
        withdraw(name, "cpu", missing.reason)
    if not missing.switched_off:
        warnings.warn(
            "statemix has no compiled CPU kernels, so plain torch computes all scans, which is "
            f"much slower. The reason: {missing.reason}. "
            f"To hide this warning, set {SWITCH}=off.",
            stacklevel=4,
        )


def _scans_of(library: Library) -> Scans:
    """The scans of the library."""

    def supports(call: ScanCall, way: str) -> bool:
        return call.m <= library.max_size and call.gate in scans.SUPPORTED_GATES

    def forward(call: ScanCall) -> Pair:
        return scans.forward(library, _with_checked_bounds(call))

    def backward(call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
        return scans.backward(library, _with_checked_bounds(call), h, dh, dh_final)

    return Scans(supports, forward, backward)


def _with_checked_bounds(call: ScanCall) -> ScanCall:
    """The call with a checked copy of its bounds.

    Between the passes, the memory of `cu_seqlens` may be changed through an array that shares it.
    """
    if call.cu_seqlens is None:
        return call
    bounds = torch.tensor(checked_bounds(call.cu_seqlens, call.x.shape[1]))
    return replace(call, cu_seqlens=bounds)


def _layer_forward(library: Library) -> Callable[..., Any]:
    def kernel(*arguments):
        *call_arguments, keep = arguments
        call = layer_call(*call_arguments)
        if find_layer_kernel(call) is None:
            return layer_op.body(*arguments)
        y, final, kept = layer.forward(*_prepared(library, call), keep)
        return pool.reshaped(y, call.output_shape), final, kept.gates, kept.h, kept.entries

    return kernel


def _layer_backward(library: Library) -> Callable[..., Any]:
    def kernel(dy, dfinal, *arguments):
        *call_arguments, gates, h, entries = arguments
        call = layer_call(*call_arguments)
        if find_layer_kernel(call) is None:
            return layer_op.body_backward(dy, dfinal, *arguments)
        kept = layer.Kept(gates, h, entries)
        d = layer.backward(
            *_prepared(library, call), _flat(dy).to(call.inputs.x.dtype), dfinal, kept
        )
        # Compiled code relies on contiguous outputs, and these may be views.
        weights = (w.contiguous() for w in (d.W_g, d.c, d.W_v, d.W_o))
        return pool.reshaped(d.x, tuple(call.inputs.x.shape)), *weights, d.h0

    return kernel


def _prepared(
    library: Library, call: LayerCall
) -> tuple[layer.Layer, layer.Rows | layer.Table, Tensor | None, list[int], Tensor | None]:
    """The arguments of both passes: the layer, the source of its gates, h0, bounds and mask."""
    x, tokens = call.inputs
    cu_seqlens, mask, _ = call.sequences
    steps = call.inputs.steps
    own = layer.make_layer(
        library,
        call.recurrence,
        call.gate,
        call.weights,
        x.dtype,
        steps.shape[1],
        call.read_from,
    )
    bounds = _flat_bounds(steps, cu_seqlens)
    source = layer.source_of(own, _flat(x), None if tokens is None else tokens.flatten())
    h0 = None if call.h0 is None else scans.as_state(call.h0)
    return own, source, h0, bounds, None if mask is None else mask.flatten().contiguous()


def _saved_shapes(call: LayerCall, keep: bool) -> tuple[tuple[int, ...], ...]:
    """The shapes of the gates, h and entries that `layer.forward` returns."""
    n, m = call.weights.state_shape(call.recurrence)
    sizes = sizes_of(n, m, recurrence=call.recurrence, gate=call.gate)
    N = call.inputs.steps.shape[0] * call.inputs.steps.shape[1]
    if not keep:
        return (0,), (0,), (-(-N // layer.STEPS), n, m)
    rows = N if call.inputs.tokens is None else call.inputs.x.shape[0]
    return (rows, sizes.inputs), (N, sizes.states), (0, n, m)


def _flat(x: Tensor) -> Tensor:
    """Flatten (B, T, d) to one time axis; a table is unchanged."""
    if x.numel():
        return x.reshape(-1, x.shape[-1])
    return x.new_zeros((math.prod(x.shape[:-1]), x.shape[-1]))


def _flat_bounds(steps: Tensor, cu_seqlens: Tensor | None) -> list[int]:
    """The bounds of all sequences on the flattened time axis."""
    B, T = steps.shape[:2]
    return [b * T for b in range(B + 1)] if cu_seqlens is None else checked_bounds(cu_seqlens, T)
