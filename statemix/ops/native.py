"""The compiled CPU scans in front of the plain ones.

They compute in float32, for inputs in float32, bfloat16 and float16; float64, and sizes above the library's largest m, take the plain body.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statemix.kernels.cpu import scans
from statemix.kernels.cpu.library import Library, Missing, load
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.registry import BODIES, register_kernel
from statemix.ops.segments import checked_bounds

SCANS = {"block_scan": True, "companion_scan": False}


def install() -> None:
    """Register the compiled scans on the CPU, if the library is there."""
    library = load()
    if isinstance(library, Missing):
        return
    label = f"C++, {library.instruction_set}"
    for name, block in SCANS.items():
        register_kernel(name, "cpu", plain_forward(library, name, block), label)
        register_kernel(f"{name}_backward", "cpu", plain_backward(library, name, block), label)
        register_kernel(f"gated_{name}", "cpu", gated_forward(library, f"gated_{name}", block), label)
        register_kernel(f"gated_{name}_backward", "cpu", gated_backward(library, f"gated_{name}", block), label)


def fits(library: Library, X: Tensor, x: Tensor, m: int) -> bool:
    """Whether the library computes a scan of this dtype and size."""
    return state_dtype(X, x) == torch.float32 and m <= library.max_size


def plain_forward(library: Library, name: str, block: bool) -> Callable[..., Any]:
    def kernel(X, x, h0, cu_seqlens, mask, reverse):
        if not fits(library, X, x, X.shape[-1]):
            return BODIES[name](X, x, h0, cu_seqlens, mask, reverse)
        check_bounds(cu_seqlens, x)
        h, final = scans.forward(library, scans.problem(block, None, X, x, h0, cu_seqlens, mask, reverse))
        return h.to(output_dtype(X, x)), final

    return kernel


def gated_forward(library: Library, name: str, block: bool) -> Callable[..., Any]:
    def kernel(gates, v, h0, cu_seqlens, mask, reverse, gate):
        if not fits(library, gates, v, gates.shape[-1] - 1):
            return BODIES[name](gates, v, h0, cu_seqlens, mask, reverse, gate)
        check_bounds(cu_seqlens, v)
        h, final = scans.forward(library, scans.problem(block, gate, gates, v, h0, cu_seqlens, mask, reverse))
        return h.to(output_dtype(gates, v)), final

    return kernel


def plain_backward(library: Library, name: str, block: bool) -> Callable[..., Any]:
    def kernel(dh, dh_final, X, h, h0, cu_seqlens, mask, reverse):
        if not fits(library, X, h, X.shape[-1]):
            return BODIES[f"{name}_backward"](dh, dh_final, X, h, h0, cu_seqlens, mask, reverse)
        # The driver enters no gradient of a scan whose coefficients are given; h stands in for its shape.
        return scans.backward(library, scans.problem(block, None, X, h, h0, cu_seqlens, mask, reverse), h, dh, dh_final)

    return kernel


def gated_backward(library: Library, name: str, block: bool) -> Callable[..., Any]:
    def kernel(dh, dh_final, gates, v, h, h0, cu_seqlens, mask, reverse, gate):
        if not fits(library, gates, v, gates.shape[-1] - 1):
            return BODIES[f"{name}_backward"](dh, dh_final, gates, v, h, h0, cu_seqlens, mask, reverse, gate)
        return scans.backward(library, scans.problem(block, gate, gates, v, h0, cu_seqlens, mask, reverse), h, dh, dh_final)

    return kernel


def check_bounds(cu_seqlens: Tensor | None, x: Tensor) -> None:
    if cu_seqlens is not None:
        checked_bounds(cu_seqlens, x.shape[1])
