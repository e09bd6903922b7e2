"""Registration of a device's kernels for all scans, with the plain bodies as the fallback.

Kernels compute in float32, for inputs in float32, bfloat16 and float16. The plain body of the op
runs for float64, and for sizes and gate functions that the device's kernels do not support.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, ScanCall
from statemix.ops.dispatch.registry import BODIES, Gradients, Pair, register_kernel
from statemix.ops.precision import output_dtype, state_dtype

__all__ = [
    "Recurrence",
    "ScanCall",
    "Scans",
    "op_name",
    "plain_backward",
    "plain_forward",
    "register_scans",
    "run_backward",
    "run_forward",
]


def op_name(recurrence: Recurrence, gate: str | None) -> str:
    """The name of the op that computes a recurrence, with or without a gate function."""
    return f"{'' if gate is None else 'gated_'}{recurrence.value}_scan"


@dataclass(frozen=True)
class Scans:
    """The kernels of a device.

    supports(call, way)                                  True if there is a kernel
    h, final = forward(call)
    dX, dx, dh0 = backward(call, h, dh, dh_final)
    """

    supports: Callable[[ScanCall, str], bool]
    forward: Callable[[ScanCall], Pair]
    backward: Callable[[ScanCall, Tensor, Tensor, Tensor], Gradients]


def register_scans(device: str, scans: Scans, label: str) -> None:
    """Register `scans` as the kernels of all eight ops on `device`."""
    for recurrence in Recurrence:
        name = op_name(recurrence, None)
        forward = _forward(scans, recurrence)
        ungated_backward, gated_backward = _backwards(scans, recurrence)
        register_kernel(name, device, forward, label)
        register_kernel(f"gated_{name}", device, forward, label)
        register_kernel(f"{name}_backward", device, ungated_backward, label)
        register_kernel(f"gated_{name}_backward", device, gated_backward, label)


def _forward(scans: Scans, recurrence: Recurrence) -> Callable[..., Pair]:
    def kernel(X, x, h0, cu_seqlens, mask, reverse, gate=None):
        call = ScanCall(recurrence, gate, X, x, h0, cu_seqlens, mask, reverse)
        return run_forward(scans, call)

    return kernel


def _backwards(
    scans: Scans, recurrence: Recurrence
) -> tuple[Callable[..., Gradients], Callable[..., Gradients]]:
    """The kernels of the backward ops without and with a gate function."""

    def gated(dh, dh_final, X, x, h, h0, cu_seqlens, mask, reverse, gate):
        call = ScanCall(recurrence, gate, X, x, h0, cu_seqlens, mask, reverse)
        return run_backward(scans, call, h, dh, dh_final)

    def ungated(dh, dh_final, X, h, h0, cu_seqlens, mask, reverse):
        # Without a gate function, no gradient depends on the driver. h, which has the same shape,
        # takes its place in the call.
        return gated(dh, dh_final, X, h, h, h0, cu_seqlens, mask, reverse, None)

    return ungated, gated


def _has_kernel(scans: Scans, call: ScanCall, way: str) -> bool:
    return state_dtype(call.X, call.x) == torch.float32 and scans.supports(call, way)


def run_forward(scans: Scans, call: ScanCall) -> Pair:
    """(h, final) by the kernel if it supports the call, else by the plain body."""
    if not _has_kernel(scans, call, "forward"):
        return plain_forward(call)
    h, final = scans.forward(call)
    return h.to(output_dtype(call.X, call.x)), final


def run_backward(
    scans: Scans, call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor
) -> Gradients:
    """(dX, dx, dh0) by the kernel if it supports the call, else by the plain body."""
    if not _has_kernel(scans, call, "backward"):
        return plain_backward(call, h, dh, dh_final)
    dX, dx, dh0 = scans.backward(call, h, dh, dh_final)
    return dX.to(call.X.dtype), dx.to(call.x.dtype), dh0


def plain_forward(call: ScanCall) -> Pair:
    """Run the op's plain body."""
    return BODIES[op_name(call.recurrence, call.gate)](call.X, call.x, call.h0, *_options(call))


def plain_backward(call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
    """Run the backward op's plain body."""
    body = BODIES[f"{op_name(call.recurrence, call.gate)}_backward"]
    inputs = (call.X, h) if call.gate is None else (call.X, call.x, h)
    return body(dh, dh_final, *inputs, call.h0, *_options(call))


def _options(call: ScanCall) -> tuple[Any, ...]:
    """The last arguments of an op."""
    sequences = (call.cu_seqlens, call.mask, call.reverse)
    return sequences if call.gate is None else (*sequences, call.gate)
