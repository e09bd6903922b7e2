"""The self-check of GPU kernels: kinds of calls, a small scan of each, and the comparison."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.gpu.plan import Plan
from statemix.ops.dispatch.scans import op_name
from statemix.ops.precision import output_dtype
from statemix.ops.segments import Sequences

__all__ = ["Kind", "difference", "kind_of", "small_call"]

# The largest error of a kernel, relative to the norm of the exact result.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


@dataclass(frozen=True)
class Kind:
    """The properties of a call for which a kernel is compiled."""

    way: str
    recurrence: Recurrence
    gate: str | None
    m: int
    dtypes: tuple[torch.dtype, torch.dtype]
    initial: bool
    packed: bool
    masked: bool
    reverse: bool
    chunked: bool
    device: torch.device

    def __str__(self) -> str:
        options = ("packed", "masked", "reverse", "chunked")
        op = op_name(self.recurrence, self.gate)
        dtype = str(self.dtypes[0]).removeprefix("torch.")
        words = [f"{self.way} of {op}", f"gate {self.gate}", f"m = {self.m}", dtype]
        return ", ".join(words + [option for option in options if getattr(self, option)])


def kind_of(call: ScanCall, way: str, plan: Plan) -> Kind:
    """The kind of a call."""
    return Kind(
        way,
        call.recurrence,
        call.gate,
        call.m,
        (call.X.dtype, call.x.dtype),
        initial=call.h0 is not None,
        packed=call.cu_seqlens is not None,
        masked=call.mask is not None,
        reverse=call.reverse,
        chunked=plan.chunk > 0,
        device=call.x.device,
    )


def difference(kind: Kind, ours: tuple[Tensor, ...], plain: tuple[Tensor, ...]) -> str:
    """The difference between a kernel and plain torch if it exceeds the tolerance, else empty."""
    tolerance = max(TOLERANCE[dtype] for dtype in kind.dtypes)
    worst = max(_relative_error(y, truth) for y, truth in zip(ours, plain, strict=True))
    if worst <= tolerance:
        return ""
    return f"it differs from plain torch by {worst:.1e}, more than {tolerance:.0e}"


def _relative_error(y: Tensor, truth: Tensor) -> float:
    """The norm of the error divided by the norm of the truth; infinite if it is NaN."""
    error = ((y.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30)).item()
    return float("inf") if math.isnan(error) else error


def small_call(kind: Kind) -> tuple[ScanCall, Tensor, Tensor]:
    """A scan of seven steps and three blocks, and gradients of its outputs."""
    generator = torch.Generator().manual_seed(0)
    B = 1 if kind.packed else 2
    T = 7
    n = 3
    m = kind.m

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(kind.device)

    driver = (B, T, n, m) if kind.recurrence.is_block else (B, T, n)
    scale = m + 1 if kind.gate in (None, "none") else 1  # bounds the growth of the states
    X = (draw(*driver, m + (kind.gate is not None)) / scale).to(kind.dtypes[0])
    cu_seqlens = torch.tensor([0, 4, 4, T], device=kind.device) if kind.packed else None
    mask = (torch.arange(B * T).view(B, T) % 3 != 1).to(kind.device) if kind.masked else None
    x = draw(*driver).to(kind.dtypes[1])
    state = (Sequences(cu_seqlens).count(x), n, m)
    h0 = draw(*state) if kind.initial else None
    call = ScanCall(kind.recurrence, kind.gate, X, x, h0, cu_seqlens, mask, kind.reverse)
    return call, draw(*driver).to(output_dtype(call.X, x)), draw(*state)
