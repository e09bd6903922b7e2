"""Calls of the compiled functions that are no scans: gated activation and cross-entropy.

Each reads and writes float32 or bfloat16 once, where torch's ops would write several temporaries.
"""

import ctypes

import torch
from torch import Tensor

from statemix.kernels.cpu import pool
from statemix.kernels.cpu.library import Library
from statemix.kernels.cpu.scans import POINTER

__all__ = ["DTYPES", "cross_entropy", "gated_activation", "gated_activation_gradient"]

DTYPES = (torch.float32, torch.bfloat16)


def gated_activation(library: Library, a: Tensor, b: Tensor) -> Tensor:
    """silu(a) ⊙ b, for contiguous a and b of one dtype."""
    y = pool.empty_like(a)
    library.handle.statemix_gated_activation(*_pointers(a, b, y), *_sizes(a))
    return y


def gated_activation_gradient(
    library: Library, a: Tensor, b: Tensor, dy: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of a and b."""
    da, db = pool.empty_like(a), pool.empty_like(b)
    library.handle.statemix_gated_activation_gradient(*_pointers(a, b, dy, da, db), *_sizes(a))
    return da, db


def cross_entropy(
    library: Library, logits: Tensor, targets: Tensor, ignored: int, *, gradient: bool
) -> float:
    """The sum of the losses of rows of logits (N, V), which become their gradient if wanted."""
    rows, classes = logits.shape
    function = library.handle.statemix_cross_entropy
    function.restype = ctypes.c_double
    sizes = (ctypes.c_int64(size) for size in (rows, classes, ignored))
    half = logits.dtype == torch.bfloat16
    return function(
        *_pointers(logits, targets), *sizes, int(gradient), int(half), torch.get_num_threads()
    )


def _pointers(*tensors: Tensor) -> list[ctypes.c_void_p]:
    return [POINTER(x.data_ptr()) for x in tensors]


def _sizes(x: Tensor) -> tuple[ctypes.c_int64, int, int]:
    threads = torch.get_num_threads() if x.numel() > 1 << 15 else 1
    return ctypes.c_int64(x.numel()), int(x.dtype == torch.bfloat16), threads
