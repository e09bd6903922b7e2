"""Softmax weights of the rows of a table, computed once per row: see `table.hpp`."""

import ctypes

import torch
from torch import Tensor

from statemix.kernels.cpu import pool
from statemix.kernels.cpu.library import Library
from statemix.kernels.cpu.scans import POINTER, pointer
from statemix.kernels.lanes import LANES

__all__ = ["finish_gradient", "weights"]


class _Table(ctypes.Structure):
    """`struct statemix_table`."""

    _fields_ = (
        ("rows", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("m", "half", "threads")),
        *((name, POINTER) for name in ("X", "weights")),
    )


def weights(library: Library, gates: Tensor, m: int) -> Tensor:
    """Coefficients and weighted drivers in float32, from raw gates and drivers in lane order."""
    out = pool.empty(tuple(gates.shape))
    library.handle.statemix_table_weights(ctypes.byref(_structure(gates, out, m)))
    return out


def finish_gradient(library: Library, gates: Tensor, sums: Tensor, m: int) -> None:
    """Turn what the scan added to `sums` into the gradients of the raw gates and drivers."""
    library.handle.statemix_table_gradient(ctypes.byref(_structure(gates, sums, m)))


def _structure(gates: Tensor, out: Tensor, m: int) -> _Table:
    rows = gates.numel() // (LANES * (m + 1))
    half = gates.dtype == torch.bfloat16
    return _Table(rows, m, half, torch.get_num_threads(), pointer(gates), pointer(out))
