"""Compiled scans in front of the plain ones: what a device's kernels must offer, and how they take an op's arguments.

Kernels compute in float32, for inputs in float32, bfloat16 and float16; float64, and sizes that a device declines, take the plain body.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.registry import BODIES, Gradients, Pair, register_kernel
from statemix.ops.segments import Sequences

SCANS = {"block_scan": True, "companion_scan": False}


def op_name(block: bool, gate: str | None) -> str:
    return ("" if gate is None else "gated_") + ("block_scan" if block else "companion_scan")


@dataclass(frozen=True)
class Call:
    """One call of a scan: which recurrence, the gate function if X holds raw gates, and the arguments of its op."""

    block: bool
    gate: str | None
    X: Tensor
    x: Tensor
    h0: Tensor | None
    sequences: Sequences

    @property
    def m(self) -> int:
        return self.X.shape[-1] - (self.gate is not None)

    @property
    def name(self) -> str:
        return op_name(self.block, self.gate)

    @property
    def gate_argument(self) -> tuple[str, ...]:
        """The last argument of a gated op, and of an ungated one none."""
        return () if self.gate is None else (self.gate,)

    def is_float32(self) -> bool:
        return state_dtype(self.X, self.x) == torch.float32


@dataclass(frozen=True)
class Scans:
    """A device's kernels: which calls they take, forward or backward, and (h, final) and (dX, dx, dh0) of those."""

    takes: Callable[[Call, str], bool]
    forward: Callable[[Call], Pair]
    backward: Callable[[Call, Tensor, Tensor, Tensor], Gradients]


def register_scans(device: str, scans: Scans, label: str) -> None:
    """Put `scans` in front of the plain bodies of all eight ops on `device`."""
    for name, block in SCANS.items():
        register_kernel(name, device, ungated_forward(scans, block), label)
        register_kernel(f"{name}_backward", device, ungated_backward(scans, block), label)
        register_kernel(f"gated_{name}", device, gated_forward(scans, block), label)
        register_kernel(f"gated_{name}_backward", device, gated_backward(scans, block), label)


def ungated_forward(scans: Scans, block: bool) -> Callable[..., Any]:
    def kernel(X, x, h0, cu_seqlens, mask, reverse):
        return run_forward(scans, Call(block, None, X, x, h0, Sequences(cu_seqlens, mask, reverse)))

    return kernel


def gated_forward(scans: Scans, block: bool) -> Callable[..., Any]:
    def kernel(gates, v, h0, cu_seqlens, mask, reverse, gate):
        return run_forward(
            scans, Call(block, gate, gates, v, h0, Sequences(cu_seqlens, mask, reverse))
        )

    return kernel


def ungated_backward(scans: Scans, block: bool) -> Callable[..., Any]:
    def kernel(dh, dh_final, X, h, h0, cu_seqlens, mask, reverse):
        # The driver enters no gradient of a scan whose coefficients are given; h stands in for its shape.
        return run_backward(
            scans,
            Call(block, None, X, h, h0, Sequences(cu_seqlens, mask, reverse)),
            h,
            dh,
            dh_final,
        )

    return kernel


def gated_backward(scans: Scans, block: bool) -> Callable[..., Any]:
    def kernel(dh, dh_final, gates, v, h, h0, cu_seqlens, mask, reverse, gate):
        return run_backward(
            scans,
            Call(block, gate, gates, v, h0, Sequences(cu_seqlens, mask, reverse)),
            h,
            dh,
            dh_final,
        )

    return kernel


def run_forward(scans: Scans, call: Call) -> Pair:
    """By the kernel if it takes the call, else by the plain body."""
    if not (call.is_float32() and scans.takes(call, "forward")):
        return plain_forward(call)
    h, final = scans.forward(call)
    return h.to(output_dtype(call.X, call.x)), final


def run_backward(scans: Scans, call: Call, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
    """By the kernel if it takes the call, else by the plain body."""
    if not (call.is_float32() and scans.takes(call, "backward")):
        return plain_backward(call, h, dh, dh_final)
    dX, dx, dh0 = scans.backward(call, h, dh, dh_final)
    return dX.to(call.X.dtype), dx.to(call.x.dtype), dh0


def plain_forward(call: Call) -> Pair:
    """What the op's own body computes."""
    return BODIES[call.name](call.X, call.x, call.h0, *call.sequences, *call.gate_argument)


def plain_backward(call: Call, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
    """What the backward op's own body computes."""
    inputs = (call.X, h) if call.gate is None else (call.X, call.x, h)
    return BODIES[f"{call.name}_backward"](
        dh, dh_final, *inputs, call.h0, *call.sequences, *call.gate_argument
    )
