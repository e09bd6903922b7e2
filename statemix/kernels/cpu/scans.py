"""Calls of the compiled scans.

States are float32. Other tensors are float32, or bfloat16, which kernels read and write in place.
"""

import ctypes
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.cpu import pool
from statemix.kernels.cpu.library import Library

__all__ = [
    "GATES",
    "SUPPORTED_GATES",
    "Scan",
    "ScanGradient",
    "as_state",
    "backward",
    "forward",
    "half_flags",
    "pointer",
    "readable",
    "run",
]

GATES = {
    None: 0,
    "softmax": 1,
    "sigmoid": 2,
    "relu": 3,
    "tanh": 4,
    "linear": 5,
    "silu": 6,
    "none": 7,
    "odds": 8,
    "hardmax": 9,
    "weights": 10,
}
HALF = {"X": 1, "x": 2, "h": 4, "dh": 8, "dX": 16, "dx": 32}  # `statemix_half`
# Only in layers: "odds" is the softmax of differences of gates, "weights" what a table holds.
SUPPORTED_GATES = GATES.keys() - {"odds", "weights"}
POINTER = ctypes.c_void_p


class Scan(ctypes.Structure):
    """`struct statemix_scan`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "T", "n", "S")),
        *((name, ctypes.c_int32) for name in ("m", "gate", "reverse", "threads")),
        *((name, ctypes.c_int64) for name in ("lanes", "half")),
        *((name, POINTER) for name in ("bounds", "mask", "rows", "X", "x", "h0", "h", "final")),
    )


class ScanGradient(ctypes.Structure):
    """`struct statemix_scan_gradient`."""

    _fields_ = (("scan", Scan), *((name, POINTER) for name in ("dh", "dfinal", "dX", "dx", "dh0")))


def forward(library: Library, call: ScanCall) -> tuple[Tensor, Tensor]:
    """(h, final)."""
    call = _readable(call)
    bounds = _bounds(call)
    h = pool.empty(tuple(call.x.shape), torch.promote_types(call.X.dtype, call.x.dtype))
    final = call.empty_states()
    arguments = _structure(call, bounds, h, final)
    run(library.handle.statemix_forward, arguments, call.recurrence)
    return h, final


def backward(
    library: Library, call: ScanCall, h: Tensor, dh: Tensor, dfinal: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dx, dh0)."""
    call = _readable(call)
    bounds = _bounds(call)
    h, dh = (readable(y).contiguous() for y in (h, dh))
    dfinal = as_state(dfinal)
    dX = pool.empty_like(call.X)
    dx = pool.empty_like(call.x)
    dh0 = call.empty_states()
    scan = _structure(call, bounds, h, None)
    scan.half |= half_flags({"dh": dh, "dX": dX, "dx": dx})
    arguments = ScanGradient(scan, *(pointer(y) for y in (dh, dfinal, dX, dx, dh0)))
    run(library.handle.statemix_backward, arguments, call.recurrence)
    return dX, dx, dh0


def _bounds(call: ScanCall) -> Tensor:
    """The start of each sequence on the flattened time axis, and the end of the last one."""
    if call.cu_seqlens is not None:
        return call.cu_seqlens.to(torch.int64).contiguous()
    return torch.arange(call.x.shape[0] + 1) * call.x.shape[1]


def _structure(call: ScanCall, bounds: Tensor, h: Tensor, final: Tensor | None) -> Scan:
    """The C structure of a call, valid as long as its tensors exist."""
    B, T, n = call.x.shape[:3]
    threads = torch.get_num_threads()
    sizes = (B, T, n, bounds.shape[0] - 1, call.m, GATES[call.gate], call.reverse, threads, False)
    half = half_flags({"X": call.X, "x": call.x, "h": h})
    tensors = (bounds, call.mask, None, call.X, call.x, call.h0, h, final)
    return Scan(*sizes, half, *(pointer(y) for y in tensors))


def half_flags(tensors: dict[str, Tensor]) -> int:
    """The flags of `statemix_half` for the tensors that are in bfloat16."""
    return sum(HALF[name] for name, y in tensors.items() if y.dtype == torch.bfloat16)


def readable(x: Tensor) -> Tensor:
    """`x` in a dtype that the library reads."""
    return x if x.dtype in (torch.float32, torch.bfloat16) else x.to(torch.float32)


def as_state(x: Tensor) -> Tensor:
    """`x` as the library expects states: float32 and contiguous."""
    return x.to(torch.float32).contiguous()


def _readable(call: ScanCall) -> ScanCall:
    """The call with contiguous tensors in dtypes that the library reads."""
    h0 = None if call.h0 is None else as_state(call.h0)
    return replace(call, X=readable(call.X), x=readable(call.x), h0=h0).contiguous()


def pointer(x: Tensor | None) -> int | None:
    """The address of a tensor's data, or None."""
    return None if x is None else x.data_ptr()


def run(function: Any, arguments: Scan | ScanGradient, recurrence: Recurrence) -> None:
    """Call a function of the library, and raise an error if it returns one."""
    if function(ctypes.byref(arguments), int(recurrence.is_block)) != 0:
        raise MemoryError("The CPU kernel could not allocate scratch memory. Free some memory.")
