"""The Triton scans in front of the plain ones on GPUs: compiled and checked on first use, and left alone where they fail.

A kernel is compiled for one kind of call: recurrence, gate function, m, dtypes, and which of the optional arguments there are.  Before the
first call of a kind the kernel computes a tiny scan, and so does plain torch; where they differ, or the kernel does not compile, plain
torch computes all calls of that kind, and says so once.
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

from statemix.kernels.gpu.plan import MAX_SIZE, SHORTEST, Plan, make_plan
from statemix.kernels.switch import SWITCH, is_switched_on
from statemix.ops.kernels import (
    SCANS,
    Call,
    Scans,
    op_name,
    plain_backward,
    plain_forward,
    register_scans,
)
from statemix.ops.lags import lagged
from statemix.ops.precision import output_dtype
from statemix.ops.registry import Gradients, Pair, withdraw
from statemix.ops.segments import Sequences, checked_bounds, previous

TOLERANCE = {
    torch.float32: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}  # of the self-check, over the norm of what is right
VERDICTS: dict["Kind", str] = {}  # why a kernel failed, empty if it did not
TOLD: set[str] = set()
LONGEST = WeakTensorKeyDictionary()  # cu_seqlens to its version and its longest sequence


def install() -> None:
    """Register the Triton scans on GPUs; without Triton they only say that it is missing."""
    reason = unavailable()
    register_scans("cuda", SCANS_IN_TRITON, f"Triton {triton_version()}")
    if reason:
        for name in ops_of_scans():
            withdraw(name, "cuda", reason)


def ops_of_scans() -> list[str]:
    return [
        f"{gated}{name}{way}"
        for name in SCANS
        for gated in ("", "gated_")
        for way in ("", "_backward")
    ]


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
    """What a kernel is compiled for."""

    way: str
    block: bool
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
                f"{self.way} of {op_name(self.block, self.gate)}",
                f"gate {self.gate}",
                f"m = {self.m}",
                dtype,
                *options,
            ]
        )


def kind_of(call: Call, way: str, plan: Plan) -> Kind:
    cu_seqlens, mask, reverse = call.sequences
    dtypes = (call.X.dtype, call.x.dtype)
    optional = (call.h0 is not None, cu_seqlens is not None, mask is not None)
    return Kind(
        way,
        call.block,
        call.gate,
        call.m,
        dtypes,
        *optional,
        reverse,
        plan.chunk > 0,
        call.x.device,
    )


def takes(call: Call, way: str) -> bool:
    """Whether a kernel computes `call`; if not, the reason is told once."""
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
    if reason not in TOLD:
        TOLD.add(reason)
        warnings.warn(
            f"{reason}. Plain torch computes this scan instead, far more slowly.", stacklevel=2
        )


def is_capturing(x: Tensor) -> bool:
    """Whether a CUDA graph is being captured, when nothing can be compared."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def verdict(kind: Kind) -> str:
    """Why the kernel of this kind fails, empty if a tiny scan comes out as in plain torch."""
    try:
        ours, plain = run_tiny(kind)
    except Exception as error:  # whatever the compiler or the driver raise
        return f"{type(error).__name__}: {str(error).strip().splitlines()[-1] if str(error).strip() else 'without a message'}"
    tolerance = max(TOLERANCE[dtype] for dtype in kind.dtypes)
    worst = max(relative(y, truth) for y, truth in zip(ours, plain, strict=True))
    return (
        ""
        if worst <= tolerance
        else f"it differs from plain torch by {worst:.1e}, more than {tolerance:.0e}"
    )


def relative(y: Tensor, truth: Tensor) -> float:
    """The norm of the difference over that of the truth; infinite where either is not finite."""
    error = ((y.double() - truth.double()).norm() / truth.double().norm().clamp(min=1e-30)).item()
    return float("inf") if math.isnan(error) else error


def run_tiny(kind: Kind) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """What the kernel makes of a small scan of this kind, in chunks of two steps if chunked, and plain torch of the same in float64."""
    call, dh, dh_final = tiny_call(kind)
    plan = replace(plan_of(call), chunk=2 if kind.chunked else 0)
    exact = replace(call, X=call.X.double(), x=call.x.double())  # which no kernel computes
    h, final = plain_forward(exact)
    if kind.way == "forward":
        return run_forward(call, plan), (h, final)
    h = h.to(dh.dtype)
    return run_backward(call, h, dh, dh_final, plan), plain_backward(
        exact, h.double(), dh.double(), dh_final
    )


def tiny_call(kind: Kind) -> tuple[Call, Tensor, Tensor]:
    """A scan of seven steps with three blocks, and gradients of its outputs."""
    generator = torch.Generator().manual_seed(0)
    B, T, n, m = (1 if kind.packed else 2), 7, 3, kind.m

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(kind.device)

    driver = (B, T, n, m) if kind.block else (B, T, n)
    X = draw(*driver, m + (kind.gate is not None)) / (
        1 if kind.gate not in (None, "none") else m + 1
    )
    cu_seqlens = torch.tensor([0, 4, 4, T], device=kind.device) if kind.packed else None
    mask = (torch.arange(B * T).view(B, T) % 3 != 1).to(kind.device) if kind.masked else None
    sequences = Sequences(cu_seqlens, mask, kind.reverse)
    x = draw(*driver).to(kind.dtypes[1])
    state = (sequences.count(x), n, m)
    call = Call(
        kind.block,
        kind.gate,
        X.to(kind.dtypes[0]),
        x,
        draw(*state) if kind.initial else None,
        sequences,
    )
    return call, draw(*driver).to(output_dtype(call.X, x)), draw(*state)


def plan_of(call: Call) -> Plan:
    """How the scan is laid out on its device."""
    T, cu_seqlens = call.x.shape[1], call.sequences.cu_seqlens
    longest = T if cu_seqlens is None or T < 4 * SHORTEST else longest_of(cu_seqlens, T)
    processors, warp = device_size(call.x.device)
    return make_plan(
        call.sequences.count(call.x),
        longest,
        call.x.shape[2],
        call.m,
        block=call.block,
        processors=processors,
        warp=warp,
    )


@cache
def device_size(device: torch.device) -> tuple[int, int]:
    """Processors of a GPU, and lanes of a warp; on the CPU, which Triton's interpreter uses, those of the smallest."""
    if device.type != "cuda":
        return 1, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def longest_of(cu_seqlens: Tensor, T: int) -> int:
    """The longest of packed sequences, after checking their bounds; read from the device once for as long as the tensor is unchanged."""
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


def forward(call: Call) -> Pair:
    if call.sequences.cu_seqlens is not None:
        longest_of(call.sequences.cu_seqlens, call.x.shape[1])
    return run_forward(call, plan_of(call))


def backward(call: Call, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
    return run_backward(call, h, dh, dh_final, plan_of(call))


def run_forward(call: Call, plan: Plan) -> Pair:
    from statemix.kernels.gpu import scans

    problem = scans.problem(call.block, call.gate, call.X, call.x, call.h0, *call.sequences, plan)
    with torch.cuda.device_of(call.x):
        return scans.forward(problem, output_dtype(call.X, call.x))


def run_backward(call: Call, h: Tensor, dh: Tensor, dh_final: Tensor, plan: Plan) -> Gradients:
    from statemix.kernels.gpu import scans

    problem = scans.problem(call.block, call.gate, call.X, call.x, call.h0, *call.sequences, plan)
    with torch.cuda.device_of(call.x):
        return scans.backward(
            problem, h, dh, dh_final, broken_lags(call, h), (call.X.dtype, call.x.dtype)
        )


def broken_lags(call: Call, h: Tensor) -> Tensor | None:
    """The states that enter each step of a masked companion scan; elsewhere a kernel finds them in h itself."""
    if call.block or call.sequences.mask is None:
        return None
    h = h.float()
    state = (
        h.new_zeros((call.sequences.count(h), h.shape[2], call.m))
        if call.h0 is None
        else call.h0.float()
    )
    return previous(lagged(h, state, call.sequences), state, call.sequences)


SCANS_IN_TRITON = Scans(takes, forward, backward)


def check_all(device: torch.device) -> None:
    """Check the kernels of every scan once, at m = 4 in float32, with softmax where there are gates, and withdraw those that fail."""
    if unavailable():
        return
    for block, gate, way in product(SCANS.values(), (None, "softmax"), ("forward", "backward")):
        kind = Kind(
            way, block, gate, 4, (torch.float32,) * 2, True, False, False, False, False, device
        )
        VERDICTS.setdefault(kind, verdict(kind))
        if VERDICTS[kind]:
            op = op_name(block, gate) + ("" if way == "forward" else "_backward")
            withdraw(op, "cuda", f"failed its self-check: {VERDICTS[kind]}")


def describe() -> str:
    """Which Triton computes scans on GPUs, or why none does, and which kernels failed in this process."""
    if reason := unavailable():
        return reason
    failed = [str(kind) for kind, why in VERDICTS.items() if why]
    checked = f"{len(VERDICTS)} kernels checked, {len(failed)} failed{': ' + '; '.join(failed) if failed else ''}"
    return f"Triton {triton_version()}, m up to {MAX_SIZE}; {checked if VERDICTS else 'kernels are checked on first use'}"
