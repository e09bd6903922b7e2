"""Registering a scan with torch: schema, plain body, fake, gradient, and a kernel slot for each device.

A scan is two ops.  With X the transition (A, a, or gates), x its driver (b or v), and m read off X,

    h, h_final = statemix::name          (X, x, h0, sequences)
    dX, dx, dh0 = statemix::name_backward(dh, dh_final, X, h, h0, sequences)

dX and dx come in the dtype of X and h, so that no kernel writes more than is kept.

The plain bodies serve every device; `register_kernel` puts a faster one in front, and torch's dispatcher
chooses.  Where a graph of the gradient itself is wanted, the backward runs in differentiable torch instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statemix.kernels.cpu.library import Missing, load
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences

NAMESPACE = "statemix"
DEVICES = ("cpu", "cuda")
OPS: list[str] = []
KERNELS: dict[tuple[str, str], str] = {}
REASONS: dict[tuple[str, str], str] = {}  # why a kernel that could be there is not
BODIES: dict[str, Callable[..., Any]] = {}

Pair = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Scan:
    """One registered scan without gate function: call it for (h, h_final), or its `backward` for (dX, dx, dh0)."""

    name: str
    body: Callable[[Tensor, Tensor, Tensor | None, Sequences], Pair]
    differentiable_adjoint: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor | None, Sequences], Gradients
    ]

    def __call__(self, X: Tensor, x: Tensor, h0: Tensor | None, sequences: Sequences) -> Pair:
        if in_transform():
            return self.body(X, x, h0, sequences)
        return getattr(torch.ops.statemix, self.name)(X, x, h0, *sequences)

    def backward(
        self,
        dh: Tensor,
        dh_final: Tensor,
        X: Tensor,
        h: Tensor,
        h0: Tensor | None,
        sequences: Sequences,
    ) -> Gradients:
        if torch.is_grad_enabled():
            return self.differentiable_adjoint(dh, dh_final, X, h, h0, sequences)
        return getattr(torch.ops.statemix, f"{self.name}_backward")(
            dh, dh_final, X, h, h0, *sequences
        )


def in_transform() -> bool:
    """Whether torch.func or forward-mode differentiation is at work, for which registered ops have no rule: plain torch has."""
    if torch.compiler.is_compiling():
        return False
    return (
        torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    )


def define_scan(
    name: str,
    body: Callable[[Tensor, Tensor, Tensor | None, Sequences], Pair],
    adjoint: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, Sequences], Gradients],
    differentiable_adjoint: Callable[
        [Tensor, Tensor, Tensor, Tensor, Tensor | None, Sequences], Gradients
    ],
) -> Scan:
    """Register both ops of a scan and tie them together."""
    scan = Scan(name, body, differentiable_adjoint)

    def fake(X, x, h0, *sequences):
        return empty_outputs(X, x, X.shape[-1], Sequences(*sequences))

    def adjoint_body(dh, dh_final, X, h, h0, *sequences):
        dX, dx, dh0 = adjoint(dh, dh_final, X, h, h0, Sequences(*sequences))
        return dX.to(X.dtype), dx.to(h.dtype), dh0

    def adjoint_fake(dh, dh_final, X, h, h0, *sequences):
        return (
            X.new_empty(X.shape),
            h.new_empty(h.shape),
            dh_final.new_empty(dh_final.shape, dtype=state_dtype(X, h)),
        )

    def setup_context(ctx, inputs, output):
        X, x, h0, cu_seqlens, mask, ctx.reverse = inputs
        ctx.dtypes = [None if y is None else y.dtype for y in (X, x, h0)]
        ctx.save_for_backward(X, output[0], h0, cu_seqlens, mask)

    def backward(ctx, dh, dh_final):
        X, h, h0, cu_seqlens, mask = ctx.saved_tensors
        gradients = scan.backward(dh, dh_final, X, h, h0, Sequences(cu_seqlens, mask, ctx.reverse))
        return *cast_each(gradients, ctx.dtypes), None, None, None

    sequences = "Tensor? cu_seqlens, Tensor? mask, bool reverse"
    define_op(
        name,
        f"(Tensor X, Tensor x, Tensor? h0, {sequences}) -> (Tensor, Tensor)",
        lambda X, x, h0, *s: body(X, x, h0, Sequences(*s)),
        fake,
    )
    define_op(
        f"{name}_backward",
        f"(Tensor dh, Tensor dh_final, Tensor X, Tensor h, Tensor? h0, {sequences}) -> (Tensor, Tensor, Tensor)",
        adjoint_body,
        adjoint_fake,
    )
    define_gradient(name, backward, setup_context)
    OPS.extend([name, f"{name}_backward"])
    return scan


def define_op(name: str, schema: str, body: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `statemix::name`, computed by `body` on every device where nothing else is registered."""
    qualified = f"{NAMESPACE}::{name}"
    torch.library.define(qualified, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(qualified, "CompositeExplicitAutograd", body)
    torch.library.register_fake(qualified, fake)
    BODIES[name] = body


def define_gradient(
    name: str, backward: Callable[..., Any], setup_context: Callable[..., Any]
) -> None:
    """Register the backward formula of `statemix::name`."""
    torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup_context)


def register_kernel(name: str, device: str, kernel: Callable[..., Any], label: str) -> None:
    """Let `kernel`, called with the op's own arguments, compute `statemix::name` on `device`."""
    if name not in OPS:
        raise ValueError(f"Unknown op {name!r}. Available: {', '.join(OPS)}.")
    if device not in DEVICES:
        raise ValueError(f"Unknown device {device!r}. Available: {', '.join(DEVICES)}.")
    torch.library.impl(f"{NAMESPACE}::{name}", device, kernel)
    KERNELS[name, device] = label


def empty_outputs(X: Tensor, x: Tensor, m: int, sequences: Sequences) -> Pair:
    """Unwritten (h, h_final) of the right shape and dtype."""
    h = x.new_empty(x.shape, dtype=output_dtype(X, x))
    return h, x.new_empty((sequences.count(x), x.shape[2], m), dtype=state_dtype(X, x))


def cast_each(
    gradients: tuple[Tensor, ...], dtypes: list[torch.dtype | None]
) -> list[Tensor | None]:
    """Each gradient in the dtype of its input, None where there was no input."""
    return [
        None if dtype is None else g.to(dtype) for g, dtype in zip(gradients, dtypes, strict=True)
    ]


@dataclass(frozen=True)
class KernelChoice:
    """What computes an op on a device, and why."""

    op: str
    device: str
    kernel: str
    why: str


def kernel_choices() -> list[KernelChoice]:
    """What computes each op on each device of this machine."""
    devices = [device for device in DEVICES if device == "cpu" or torch.cuda.is_available()]
    return [_choose(op, device) for op in OPS for device in devices]


def _choose(op: str, device: str) -> KernelChoice:
    if (op, device) in KERNELS:
        return KernelChoice(op, device, KERNELS[op, device], "registered for this op and device")
    why = REASONS.get((op, device), f"no {device} kernel is registered")
    return KernelChoice(op, device, "plain torch", cpu_library() if device == "cpu" else why)


def withdraw(name: str, device: str, reason: str) -> None:
    """Record that the plain body computes `statemix::name` on `device` after all."""
    KERNELS.pop((name, device), None)
    REASONS[name, device] = reason


def cpu_library() -> str:
    """Which compiled library is loaded, or why none is."""
    library = load()
    if isinstance(library, Missing):
        return library.reason
    threads = "all torch's threads" if library.threaded else "one thread: built without OpenMP"
    return f"{library.path.name}, instruction set {library.instruction_set}, {threads}"
