"""The Triton scans in front of the plain ones on GPUs: compiled and checked on first use, with plain torch as the fallback.

A kernel is compiled for one kind of call: recurrence, gate function, m, dtypes, and which optional arguments are present.  Before the
first call of a kind, the kernel and plain torch both compute a tiny scan.  If they differ, or the kernel does not compile, plain torch
computes all calls of that kind, and one warning says so.
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise, product

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.gpu.plan import MAX_SIZE, SHORTEST, SUPPORTED_GATES, Plan, make_plan
from statemix.kernels.switch import SWITCH, is_switched_on
from statemix.ops.block import state_or_zero
from statemix.ops.dispatch.registry import Gradients, Pair, withdraw
from statemix.ops.dispatch.scans import (
    Scans,
    op_name,
    plain_backward,
    plain_forward,
    register_scans,
)
from statemix.ops.lags import lagged
from statemix.ops.precision import output_dtype
from statemix.ops.segments import Sequences, checked_bounds, previous

__all__ = [
    "check_all",
    "describe",
    "install",
    "plan_of",
    "run_backward",
    "run_forward",
    "unavailable",
]

TOLERANCE = {
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}  # of the self-check, relative to the norm of the exact result
VERDICTS: dict["Kind", str] = {}  # why a kernel failed, empty if it did not
TOLD: set[str] = set()  # the reasons that warnings have given
LONGEST = WeakTensorKeyDictionary()  # cu_seqlens to its version and its longest sequence


def install() -> None:
    """Register the Triton scans on GPUs; without Triton they only warn that it is missing."""
    reason = unavailable()
    register_scans("cuda", SCANS_IN_TRITON, f"Triton {triton_version()}")
    if reason:
        for name in ops_of_scans():
            withdraw(name, "cuda", reason)


def ops_of_scans() -> list[str]:
    """The names of all ops that compute scans."""
    kinds = product(Recurrence, (None, "softmax"), ("", "_backward"))
    return [f"{op_name(recurrence, gate)}{way}" for recurrence, gate, way in kinds]


@cache
def unavailable() -> str:
    """Why no kernel can run, empty if one can."""
    if not is_switched_on():
        return f"switched off by {SWITCH}=off"
    return "" if find_spec("triton") else "Triton is not installed; pip install 'statemix[gpu]'"


def triton_version() -> str:
    for package in ("triton", "pytorch-triton-rocm", "pytorch-triton", "triton-windows"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed" if find_spec("triton") is None else "of unknown version"


@dataclass(frozen=True)
class Kind:
    """The properties of a call that a kernel is compiled for."""

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
        options = [
            word for word in ("packed", "masked", "reverse", "chunked") if getattr(self, word)
        ]
        dtype = str(self.dtypes[0]).removeprefix("torch.")
        return ", ".join(
            [
                f"{self.way} of {op_name(self.recurrence, self.gate)}",
                f"gate {self.gate}",
                f"m = {self.m}",
                dtype,
                *options,
            ]
        )


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


def supports(call: ScanCall, way: str) -> bool:
    """True if a kernel computes `call`; if not, a warning gives the reason once."""
    if call.gate not in SUPPORTED_GATES:
        tell(f"GPU kernels do not have the gate function {call.gate!r}")
        return False
    if call.m > MAX_SIZE:
        tell(f"GPU kernels go up to m = {MAX_SIZE}, got m = {call.m}")
        return False
    if reason := unavailable():
        if reason != f"switched off by {SWITCH}=off":
            tell(reason)
        return False
    kind = kind_of(call, way, plan_of(call))
    if kind not in VERDICTS:
        VERDICTS[kind] = "" if is_capturing(call.x) else verdict(kind)
        if VERDICTS[kind]:
            tell(f"The GPU kernel for {kind} failed its self-check: {VERDICTS[kind]}")
    return not VERDICTS[kind]


def tell(reason: str) -> None:
    """Warn once that plain torch computes a scan, and why."""
    if reason not in TOLD:
        TOLD.add(reason)
        warnings.warn(
            f"{reason}. Plain torch computes this scan instead, far more slowly.", stacklevel=2
        )


def is_capturing(x: Tensor) -> bool:
    """True while a CUDA graph is captured, when results cannot be compared."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def verdict(kind: Kind) -> str:
    """Why the kernel of this kind fails, empty if a tiny scan agrees with plain torch."""
    try:
        ours, plain = run_tiny(kind)
    except Exception as error:  # any error of the compiler or the driver
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else 'without a message'}"
    tolerance = max(TOLERANCE[dtype] for dtype in kind.dtypes)
    worst = max(relative(y, truth) for y, truth in zip(ours, plain, strict=True))
    return (
        ""
        if worst <= tolerance
        else f"it differs from plain torch by {worst:.1e}, more than {tolerance:.0e}"
    )


def relative(y: Tensor, truth: Tensor) -> float:
    """The norm of the difference over that of the truth; infinite if either is not finite."""
    error = ((y.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30)).item()
    return float("inf") if math.isnan(error) else error


def run_tiny(kind: Kind) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A small scan of this kind by the kernel, in chunks of two steps if chunked, and by plain torch in float64."""
    call, dh, dh_final = tiny_call(kind)
    plan = replace(plan_of(call), chunk=2 if kind.chunked else 0)
    exact = replace(call, X=call.X.double(), x=call.x.double())  # no kernel computes float64
    h, final = plain_forward(exact)
    if kind.way == "forward":
        return run_forward(call, plan), (h, final)
    h = h.to(dh.dtype)
    return run_backward(call, h, dh, dh_final, plan), plain_backward(
        exact, h.double(), dh.double(), dh_final
    )


def tiny_call(kind: Kind) -> tuple[ScanCall, Tensor, Tensor]:
    """A scan of seven steps with three blocks, and gradients of its outputs."""
    generator = torch.Generator().manual_seed(0)
    B = 1 if kind.packed else 2
    T, n, m = 7, 3, kind.m

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(kind.device)

    driver = (B, T, n, m) if kind.recurrence.is_block else (B, T, n)
    X = draw(*driver, m + (kind.gate is not None)) / (
        1 if kind.gate not in (None, "none") else m + 1
    )
    cu_seqlens = torch.tensor([0, 4, 4, T], device=kind.device) if kind.packed else None
    mask = (torch.arange(B * T).view(B, T) % 3 != 1).to(kind.device) if kind.masked else None
    x = draw(*driver).to(kind.dtypes[1])
    state = (Sequences(cu_seqlens).count(x), n, m)
    h0 = draw(*state) if kind.initial else None
    X = X.to(kind.dtypes[0])
    call = ScanCall(kind.recurrence, kind.gate, X, x, h0, cu_seqlens, mask, kind.reverse)
    return call, draw(*driver).to(output_dtype(call.X, x)), draw(*state)


def plan_of(call: ScanCall) -> Plan:
    """How the scan is laid out on its device."""
    longest = call.x.shape[1]
    if call.cu_seqlens is not None and longest >= 4 * SHORTEST:
        longest = longest_of(call.cu_seqlens, longest)
    processors, warp = device_size(call.x.device)
    return make_plan(
        call.count,
        longest,
        call.x.shape[2],
        call.m,
        recurrence=call.recurrence,
        processors=processors,
        warp=warp,
    )


@cache
def device_size(device: torch.device) -> tuple[int, int]:
    """Processors of a GPU, and lanes of a warp; on the CPU, for Triton's interpreter, those of the smallest GPU."""
    if device.type != "cuda":
        return 1, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def longest_of(cu_seqlens: Tensor, T: int) -> int:
    """The length of the longest packed sequence, after checking the bounds; read from the device once until the tensor changes."""
    if cu_seqlens.is_inference():
        return longest_checked(cu_seqlens, T)
    known = LONGEST.get(cu_seqlens)
    if known is None or known[:2] != (cu_seqlens._version, T):
        known = (cu_seqlens._version, T, longest_checked(cu_seqlens, T))
        LONGEST[cu_seqlens] = known
    return known[2]


def longest_checked(cu_seqlens: Tensor, T: int) -> int:
    bounds = checked_bounds(cu_seqlens, T)
    return max((b - a for a, b in pairwise(bounds)), default=0)


def forward(call: ScanCall) -> Pair:
    if call.cu_seqlens is not None:
        longest_of(call.cu_seqlens, call.x.shape[1])
    return run_forward(call, plan_of(call))


def backward(call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
    return run_backward(call, h, dh, dh_final, plan_of(call))


def run_forward(call: ScanCall, plan: Plan) -> Pair:
    """(h, final) by the kernel."""
    from statemix.kernels.gpu import scans

    with torch.cuda.device_of(call.x):
        return scans.forward(call, plan, output_dtype(call.X, call.x))


def run_backward(call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor, plan: Plan) -> Gradients:
    """(dX, dx, dh0) by the kernel."""
    from statemix.kernels.gpu import scans

    with torch.cuda.device_of(call.x):
        return scans.backward(call, plan, h, dh, dh_final, broken_lags(call, h))


def broken_lags(call: ScanCall, h: Tensor) -> Tensor | None:
    """The states that enter each step of a masked companion scan; in other scans a kernel reads them from h."""
    if call.recurrence.is_block or call.mask is None:
        return None
    sequences = Sequences(call.cu_seqlens, call.mask, call.reverse)
    h = h.float()
    state = state_or_zero(call.h0, h, call.m, torch.float32, sequences)
    return previous(lagged(h, state, sequences), state, sequences)


SCANS_IN_TRITON = Scans(supports, forward, backward)


def check_all(device: torch.device) -> None:
    """Check the kernels of every scan once, at m = 4 in float32 with softmax gates, and withdraw those that fail."""
    if unavailable():
        return
    dtypes = (torch.float32, torch.float32)
    for recurrence, gate, way in product(Recurrence, (None, "softmax"), ("forward", "backward")):
        kind = Kind(way, recurrence, gate, 4, dtypes, True, False, False, False, False, device)
        VERDICTS.setdefault(kind, verdict(kind))
        if VERDICTS[kind]:
            op = op_name(recurrence, gate) + ("" if way == "forward" else "_backward")
            withdraw(op, "cuda", f"failed its self-check: {VERDICTS[kind]}")


def describe() -> str:
    """The version of Triton that computes scans on GPUs, or why none does, and the kernels that failed in this process."""
    if reason := unavailable():
        return reason
    failed = [str(kind) for kind, why in VERDICTS.items() if why]
    checked = f"{len(VERDICTS)} kernels checked, {len(failed)} failed{': ' + '; '.join(failed) if failed else ''}"
    return f"Triton {triton_version()}, m up to {MAX_SIZE}; {checked if VERDICTS else 'kernels are checked on first use'}"
