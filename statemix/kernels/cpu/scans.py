"""Calling the compiled scans: float32 tensors in, float32 tensors out."""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.kernels.cpu import pool
from statemix.kernels.cpu.library import Library
from statemix.kernels.problem import Problem

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
}
POINTER = ctypes.c_void_p


class Scan(ctypes.Structure):
    """`struct statemix_scan`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "T", "n", "S")),
        *((name, ctypes.c_int32) for name in ("m", "gate", "reverse", "threads")),
        ("lanes", ctypes.c_int64),
        *((name, POINTER) for name in ("bounds", "mask", "rows", "X", "x", "h0", "h", "final")),
    )


class ScanGradient(ctypes.Structure):
    """`struct statemix_scan_gradient`."""

    _fields_ = (("scan", Scan), *((name, POINTER) for name in ("dh", "dfinal", "dX", "dx", "dh0")))


@dataclass(frozen=True)
class Floats(Problem):
    """A scan whose inputs are float32."""

    def bounds(self) -> Tensor:
        """Where each sequence starts and the last one stops, on the flattened time axis."""
        if self.cu_seqlens is not None:
            return self.cu_seqlens.to(torch.int64).contiguous()
        return torch.arange(self.x.shape[0] + 1) * self.x.shape[1]

    def structure(self, bounds: Tensor, h: Tensor, final: Tensor | None) -> Scan:
        """The C view; valid while its tensors live."""
        B, T, n = self.x.shape[:3]
        gate, threads = GATES[self.gate], torch.get_num_threads()
        sizes = (B, T, n, bounds.shape[0] - 1, self.m, gate, self.reverse, threads, False)
        return Scan(
            *sizes,
            *(pointer(y) for y in (bounds, self.mask, None, self.X, self.x, self.h0, h, final)),
        )


def problem(
    block: bool,
    gate: str | None,
    X: Tensor,
    x: Tensor,
    h0: Tensor | None,
    cu_seqlens: Tensor | None,
    mask: Tensor | None,
    reverse: bool,
) -> Floats:
    """Bring the arguments of an op into the form that the library reads."""
    kept = None if mask is None else mask.contiguous()
    return Floats(
        block,
        gate,
        as_input(X),
        as_input(x),
        None if h0 is None else as_input(h0),
        cu_seqlens,
        kept,
        reverse,
    )


def forward(library: Library, scan: Floats) -> tuple[Tensor, Tensor]:
    """(h, final)."""
    bounds, h, final = scan.bounds(), pool.empty_like(scan.x), scan.states()
    arguments = scan.structure(bounds, h, final)
    check(library.handle.statemix_forward(ctypes.byref(arguments), int(scan.block)))
    return h, final


def backward(
    library: Library, scan: Floats, h: Tensor, dh: Tensor, dfinal: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dx, dh0)."""
    bounds, h, dh, dfinal = scan.bounds(), as_input(h), as_input(dh), as_input(dfinal)
    dX, dx, dh0 = pool.empty_like(scan.X), pool.empty_like(scan.x), scan.states()
    arguments = ScanGradient(
        scan.structure(bounds, h, None), *(pointer(y) for y in (dh, dfinal, dX, dx, dh0))
    )
    check(library.handle.statemix_backward(ctypes.byref(arguments), int(scan.block)))
    return dX, dx, dh0


def as_input(x: Tensor) -> Tensor:
    return x.to(torch.float32).contiguous()


def pointer(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def check(status: int) -> None:
    if status != 0:
        raise MemoryError("The CPU kernel found no memory for its scratch space.")
