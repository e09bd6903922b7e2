"""The compiled CPU scans and layers in front of the plain ones, up to the library's largest m."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from statemix.kernels.cpu import layer, pool, scans
from statemix.kernels.cpu.library import Library, Missing, load
from statemix.kernels.lanes import sizes_of
from statemix.ops.kernels import Call, Scans, register_scans
from statemix.ops.layer import LAYER_KERNELS, Inputs, LayerKernel, Weights, find_layer_kernel
from statemix.ops.registry import BODIES, Gradients, Pair, register_kernel
from statemix.ops.segments import Sequences, checked_bounds


def install() -> None:
    """Register the compiled scans on the CPU, if the library is there."""
    library = load()
    if isinstance(library, Missing):
        return
    label = f"C++, {library.instruction_set}"
    register_scans("cpu", scans_of(library), label)
    register_kernel("recurrent_layer", "cpu", layer_forward(library), label)
    register_kernel("recurrent_layer_backward", "cpu", layer_backward(library), label)
    LAYER_KERNELS["cpu"] = LayerKernel(library.max_size, saved_shapes)


def scans_of(library: Library) -> Scans:
    """The library's scans."""

    def forward(call: Call) -> Pair:
        check_bounds(call.sequences.cu_seqlens, call.x)
        return scans.forward(library, problem(call))

    def backward(call: Call, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
        return scans.backward(library, problem(call), h, dh, dh_final)

    return Scans(lambda call, way: call.m <= library.max_size, forward, backward)


def problem(call: Call) -> scans.Floats:
    return scans.problem(call.block, call.gate, call.X, call.x, call.h0, *call.sequences)


def layer_forward(library: Library) -> Callable[..., Any]:
    def kernel(x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, keep):
        if find_layer_kernel(x, gate_count(W_g, W_v) - 1) is None:
            return BODIES["recurrent_layer"](
                x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, keep
            )
        own, steps = (
            layer.make_layer(library, block, gate, W_g, c, W_v, W_o),
            Inputs(x, tokens).steps,
        )
        bounds, real = (
            flat_bounds(steps, cu_seqlens),
            None if mask is None else mask.flatten().contiguous(),
        )
        source = layer.source_of(own, flat(x), None if tokens is None else tokens.flatten())
        y, final, kept = layer.forward(
            own, source, None if h0 is None else scans.as_input(h0), bounds, real, keep
        )
        return (
            pool.reshaped(y, (*steps.shape[:2], W_o.shape[0])),
            final,
            kept.gates,
            kept.h,
            kept.entries,
        )

    return kernel


def layer_backward(library: Library) -> Callable[..., Any]:
    def kernel(
        dy,
        dfinal,
        x,
        tokens,
        W_g,
        c,
        W_v,
        W_o,
        h0,
        cu_seqlens,
        mask,
        gate,
        block,
        gates,
        h,
        entries,
    ):
        if find_layer_kernel(x, gate_count(W_g, W_v) - 1) is None:
            arguments = (
                dy,
                dfinal,
                x,
                tokens,
                W_g,
                c,
                W_v,
                W_o,
                h0,
                cu_seqlens,
                mask,
                gate,
                block,
                gates,
                h,
                entries,
            )
            return BODIES["recurrent_layer_backward"](*arguments)
        own = layer.make_layer(library, block, gate, W_g, c, W_v, W_o)
        bounds, real = (
            flat_bounds(Inputs(x, tokens).steps, cu_seqlens),
            None if mask is None else mask.flatten().contiguous(),
        )
        source = layer.source_of(own, flat(x), None if tokens is None else tokens.flatten())
        start, kept = None if h0 is None else scans.as_input(h0), layer.Kept(gates, h, entries)
        d = layer.backward(own, source, flat(dy), dfinal, start, bounds, real, kept)
        weights = (
            w.contiguous() for w in (d.W_g, d.c, d.W_v, d.W_o)
        )  # compiled code relies on strides, and these may be views
        return pool.reshaped(d.x, tuple(x.shape)), *weights, d.h0

    return kernel


def gate_count(W_g: Tensor, W_v: Tensor) -> int:
    """Gates of a row, m + 1."""
    return W_g.shape[0] // W_v.shape[0]


def saved_shapes(
    inputs: Inputs, weights: Weights, sequences: Sequences, gate: str, block: bool, keep: bool
) -> tuple[tuple[int, ...], ...]:
    """Of gates, h and entries, as `layer.forward` returns them."""
    n, m = weights.state_shape(block)
    sizes, N = sizes_of(n, m, block=block, gate=gate), inputs.steps.shape[0] * inputs.steps.shape[1]
    if keep:
        return (
            (N if inputs.tokens is None else inputs.x.shape[0], sizes.inputs),
            (N, sizes.states),
            (0, n, m),
        )
    return (0,), (0,), (-(-N // layer.STEPS), n, m)


def flat(x: Tensor) -> Tensor:
    """(B, T, d) on one axis of time; a table stays as it is."""
    return (
        x.reshape(-1, x.shape[-1])
        if x.numel()
        else x.new_zeros((math.prod(x.shape[:-1]), x.shape[-1]))
    )


def flat_bounds(steps: Tensor, cu_seqlens: Tensor | None) -> list[int]:
    """Where sequences begin and end on that axis."""
    B, T = steps.shape[:2]
    return [b * T for b in range(B + 1)] if cu_seqlens is None else checked_bounds(cu_seqlens, T)


def check_bounds(cu_seqlens: Tensor | None, x: Tensor) -> None:
    if cu_seqlens is not None:
        checked_bounds(cu_seqlens, x.shape[1])
