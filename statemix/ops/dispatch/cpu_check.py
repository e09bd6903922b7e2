"""The self-check of the compiled CPU library: small scans, compared with plain torch."""

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.cpu import scans
from statemix.kernels.cpu.library import Library
from statemix.ops.dispatch.scans import op_name, plain_backward, plain_forward

__all__ = ["disagreement"]

# The library has code of its own for each of these sizes, and one path for all others.
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16)
GATES = (None, "hardmax", "sigmoid", "tanh")
T = 3
N = 9  # one full group of eight blocks, and one that is padded
TOLERANCE = 1e-4  # the largest error, relative to the norm of the exact result


def disagreement(library: Library) -> str:
    """The first difference between the library and plain torch, empty if there is none."""
    with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
        for call in _calls():
            ours, plain = _run(library, call)
            for way, y, truth in zip(("", "", " backward", " backward"), ours, plain, strict=True):
                error = (y - truth).norm() / truth.norm()
                if not error <= TOLERANCE:
                    name = f"{op_name(call.recurrence, call.gate)}{way}"
                    gate = "" if call.gate is None else f", gate {call.gate}"
                    return f"{name} with m = {call.m}{gate} differs from plain torch by {error:.0e}"
    return ""


def _calls() -> Iterator[ScanCall]:
    """A small scan of each size, and of each kind of gate function."""
    for recurrence, m in product(Recurrence, SIZES):
        yield _call(recurrence, "softmax", m)
    for recurrence, gate in product(Recurrence, GATES):
        yield _call(recurrence, gate, 3)


def _call(recurrence: Recurrence, gate: str | None, m: int) -> ScanCall:
    driver = (1, T, N, m) if recurrence.is_block else (1, T, N)
    X = _wave(*driver, m + (gate is not None))
    return ScanCall(recurrence, gate, X, _wave(*driver), _wave(1, N, m))


def _wave(*shape: int) -> Tensor:
    """Numbers in (−1, 1) that look random and leave the random number generator alone."""
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1, dtype=torch.float64).square().sin().float().view(shape)


def _run(library: Library, call: ScanCall) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """The results of both passes: states, final states, and the gradients of X and x."""
    h, final = plain_forward(call)
    ours = scans.forward(library, call)
    dX, dx, _ = scans.backward(library, call, h, h, final)
    dX_plain, dx_plain, _ = plain_backward(call, h, h, final)
    return (*ours, dX, dx), (h, final, dX_plain, dx_plain)
