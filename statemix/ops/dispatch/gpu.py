"""The Triton scans on GPUs: compiled and checked on first use, with plain torch as the fallback.

A kernel is compiled for one kind of call: recurrence, gate function, m, dtypes, and optional
arguments. Before the first call of a kind, the kernel and plain torch both compute a small scan. If
the results differ, or the kernel does not compile, plain torch computes all calls of that kind,
with one warning.
"""

import warnings
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import pairwise, product

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from statemix.extras import install_command
from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.gpu.plan import MAX_SIZE, SHORTEST, SUPPORTED_GATES, Plan, make_plan
from statemix.kernels.switch import SWITCH, is_switched_on
from statemix.ops.block import state_or_zero
from statemix.ops.dispatch.gpu_check import Kind, difference, kind_of, small_call
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
    "Kind",
    "check_all",
    "describe",
    "install",
    "longest_of",
    "masked_lags",
    "ops_of_scans",
    "plan_of",
    "run_backward",
    "run_forward",
    "supports",
    "unavailable",
    "verdict",
]

VERDICTS: dict[Kind, str] = {}  # the reason why a kernel failed, empty if it passed
WARNED: set[str] = set()  # the reasons in the warnings so far
LONGEST = WeakTensorKeyDictionary()  # for each cu_seqlens, (version, T, length of the longest)


def install() -> None:
    """Register the Triton scans on GPUs; without Triton, they warn and run in plain torch."""
    reason = unavailable()
    register_scans("cuda", SCANS_IN_TRITON, f"Triton {_triton_version()}")
    if reason:
        for name in ops_of_scans():
            withdraw(name, "cuda", reason)


def ops_of_scans() -> list[str]:
    """The names of the ops of all scans."""
    kinds = product(Recurrence, (None, "softmax"), ("", "_backward"))
    return [f"{op_name(recurrence, gate)}{way}" for recurrence, gate, way in kinds]


@cache
def unavailable() -> str:
    """The reason why no kernel can run, empty if kernels can run."""
    if not is_switched_on():
        return f"switched off by {SWITCH}=off"
    return "" if find_spec("triton") else f"Triton is not installed; {install_command('gpu')}"


def _triton_version() -> str:
    for package in ("triton", "pytorch-triton-rocm", "pytorch-triton", "triton-windows"):
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "not installed" if find_spec("triton") is None else "of unknown version"


def supports(call: ScanCall, way: str) -> bool:
    """True if a kernel computes `call`; otherwise warn once for each reason."""
    if call.gate not in SUPPORTED_GATES:
        _warn_once(f"GPU kernels do not have the gate function {call.gate!r}")
        return False
    largest = MAX_SIZE[call.recurrence]
    if call.m > largest:
        name = call.recurrence.value
        _warn_once(f"GPU kernels of {name} scans go up to m = {largest}, got m = {call.m}")
        return False
    if reason := unavailable():
        if reason != f"switched off by {SWITCH}=off":
            _warn_once(reason)
        return False
    kind = kind_of(call, way, plan_of(call))
    if kind not in VERDICTS:
        VERDICTS[kind] = "" if _is_capturing(call.x) else verdict(kind)
        if VERDICTS[kind]:
            _warn_once(f"The GPU kernel for {kind} failed its self-check: {VERDICTS[kind]}")
    return not VERDICTS[kind]


def _warn_once(reason: str) -> None:
    """Warn that plain torch computes a scan for this reason, unless a warning already gave it."""
    if reason not in WARNED:
        WARNED.add(reason)
        warnings.warn(
            f"{reason}. Plain torch computes this scan instead, which is much slower.", stacklevel=2
        )


def _is_capturing(x: Tensor) -> bool:
    """True during the capture of a CUDA graph, when results cannot be compared."""
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def verdict(kind: Kind) -> str:
    """The reason why the kernel of this kind fails its self-check, empty if it passes."""
    try:
        ours, plain = _run_small(kind)
    except Exception as error:  # any error of the compiler or the driver
        *_, last = str(error).strip().splitlines() or ["without a message"]
        return f"{type(error).__name__}: {last}"
    return difference(kind, ours, plain)


def _run_small(kind: Kind) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A small scan by the kernel (chunks of two steps if chunked) and by plain torch in float64."""
    call, dh, dh_final = small_call(kind)
    plan = replace(plan_of(call), chunk=2 if kind.chunked else 0)
    exact = replace(call, X=call.X.double(), x=call.x.double())  # no kernel computes float64
    h, final = plain_forward(exact)
    if kind.way == "forward":
        return run_forward(call, plan), (h, final)
    h = h.to(dh.dtype)
    return run_backward(call, h, dh, dh_final, plan), plain_backward(
        exact, h.double(), dh.double(), dh_final
    )


def plan_of(call: ScanCall) -> Plan:
    """The plan of a scan on its device."""
    longest = call.x.shape[1]
    if call.cu_seqlens is not None and longest >= 4 * SHORTEST:
        longest = longest_of(call.cu_seqlens, longest)
    processors, warp = _device_size(call.x.device)
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
def _device_size(device: torch.device) -> tuple[int, int]:
    """The multiprocessors of a GPU and the width of its warps; (1, 32) for Triton's interpreter."""
    if device.type != "cuda":
        return 1, 32
    properties = torch.cuda.get_device_properties(device)
    return properties.multi_processor_count, properties.warp_size


def longest_of(cu_seqlens: Tensor, T: int) -> int:
    """The length of the longest packed sequence, after checking the bounds.

    The bounds are copied from the device only once, until the tensor is modified.
    """
    if cu_seqlens.is_inference():
        return _longest_checked(cu_seqlens, T)
    known = LONGEST.get(cu_seqlens)
    if known is None or known[:2] != (cu_seqlens._version, T):
        known = (cu_seqlens._version, T, _longest_checked(cu_seqlens, T))
        LONGEST[cu_seqlens] = known
    return known[2]


def _longest_checked(cu_seqlens: Tensor, T: int) -> int:
    bounds = checked_bounds(cu_seqlens, T)
    return max((b - a for a, b in pairwise(bounds)), default=0)


def _forward(call: ScanCall) -> Pair:
    if call.cu_seqlens is not None:
        longest_of(call.cu_seqlens, call.x.shape[1])
    return run_forward(call, plan_of(call))


def _backward(call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor) -> Gradients:
    return run_backward(call, h, dh, dh_final, plan_of(call))


def run_forward(call: ScanCall, plan: Plan) -> Pair:
    """(h, final) from the kernel."""
    from statemix.kernels.gpu import scans

    with torch.cuda.device_of(call.x):
        return scans.forward(call, plan, output_dtype(call.X, call.x))


def run_backward(call: ScanCall, h: Tensor, dh: Tensor, dh_final: Tensor, plan: Plan) -> Gradients:
    """(dX, dx, dh0) from the kernel."""
    from statemix.kernels.gpu import scans

    with torch.cuda.device_of(call.x):
        return scans.backward(call, plan, h, dh, dh_final, masked_lags(call, h))


def masked_lags(call: ScanCall, h: Tensor) -> Tensor | None:
    """The state before each step of a masked companion scan; other scans read it from h (None)."""
    if call.recurrence.is_block or call.mask is None:
        return None
    sequences = Sequences(call.cu_seqlens, call.mask, call.reverse)
    h = h.float()
    state = state_or_zero(call.h0, h, call.m, torch.float32, sequences)
    return previous(lagged(h, state, sequences), state, sequences)


SCANS_IN_TRITON = Scans(supports, _forward, _backward)


def check_all(device: torch.device) -> None:
    """Check the kernels of all scans (m = 4, float32, softmax gates); withdraw those that fail."""
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
    """The version of Triton, or the reason why no kernel can run, and the kernels that failed."""
    if reason := unavailable():
        return reason
    failed = [str(kind) for kind, why in VERDICTS.items() if why]
    checked = f"{len(VERDICTS)} kernels checked, {len(failed)} failed"
    checked += f": {'; '.join(failed)}" if failed else ""
    checked = checked if VERDICTS else "kernels are checked on first use"
    sizes = ", ".join(f"{kind.value} scans m up to {m}" for kind, m in MAX_SIZE.items())
    return f"Triton {_triton_version()}, {sizes}; {checked}"
