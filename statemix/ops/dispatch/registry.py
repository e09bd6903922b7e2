"""Registration of ops with torch: schema, plain body, fake, gradient, and kernels by device.

A scan is two ops. With X the transition (A, a, or gates) and x its driver (b or v),

    h, h_final = statemix::name          (X, x, h0, sequences)
    dX, dx, dh0 = statemix::name_backward(dh, dh_final, X, h, h0, sequences)

dX has the dtype of X, and dx that of h, so that kernels write gradients in their final dtype. The
ops of a gated scan take `gate` as their last argument, and its backward op also takes x, before h.

The plain bodies run on every device. `register_kernel` adds a kernel for one device, and torch's
dispatcher chooses. If the gradient itself needs a graph, the backward pass runs in differentiable
torch instead.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences

__all__ = [
    "BODIES",
    "KERNELS",
    "OPS",
    "REASONS",
    "Adjoint",
    "Gradients",
    "KernelChoice",
    "Pair",
    "Scan",
    "cast_each",
    "define_gradient",
    "define_op",
    "define_scan",
    "in_transform",
    "kernel_choices",
    "register_kernel",
    "register_ops",
    "withdraw",
]

NAMESPACE = "statemix"
DEVICES = ("cpu", "cuda")
OPS: list[str] = []
KERNELS: dict[tuple[str, str], str] = {}
REASONS: dict[tuple[str, str], str] = {}  # why an op has no kernel
BODIES: dict[str, Callable[..., Any]] = {}

Pair = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]
Adjoint = Callable[..., Gradients]  # from (dh, dh_final, X, h, h0, sequences), see above


@dataclass(frozen=True)
class Scan:
    """A registered scan without a gate function.

    h, h_final = scan(X, x, h0, sequences)
    dX, dx, dh0 = scan.backward(dh, dh_final, X, h, h0, sequences)
    """

    name: str
    body: Callable[[Tensor, Tensor, Tensor | None, Sequences], Pair]
    differentiable_adjoint: Adjoint

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
    """True inside torch.func or forward-mode differentiation, which run plain torch, not ops."""
    if torch.compiler.is_compiling():
        return False
    return (
        torch._C._are_functorch_transforms_active() or torch.autograd.forward_ad._current_level >= 0
    )


def define_scan(
    name: str, body: Callable[..., Pair], adjoint: Adjoint, differentiable_adjoint: Adjoint
) -> Scan:
    """Register both ops of a scan without a gate function."""
    scan = Scan(name, body, differentiable_adjoint)
    register_ops(name, body, adjoint, scan.backward, gated=False)
    return scan


def register_ops(
    name: str,
    body: Callable[..., Pair],
    adjoint: Adjoint,
    backward: Adjoint,
    *,
    gated: bool,
) -> None:
    """Register a scan and its backward op, with `backward` as the gradient of the scan.

    A gated scan takes the name of its gate function as the last argument, and its adjoint also
    takes the driver.
    """

    def scan_body(X, x, h0, cu_seqlens, mask, reverse, *gate):
        return body(X, x, h0, Sequences(cu_seqlens, mask, reverse), *gate)

    def fake(X, x, h0, cu_seqlens, mask, reverse, *gate):
        h = x.new_empty(x.shape, dtype=output_dtype(X, x))
        shape = (Sequences(cu_seqlens).count(x), x.shape[2], X.shape[-1] - gated)
        return h, x.new_empty(shape, dtype=state_dtype(X, x))

    def adjoint_body(dh, dh_final, *arguments):
        inputs = arguments[: 2 + gated]
        h0, cu_seqlens, mask, reverse, *gate = arguments[2 + gated :]
        sequences = Sequences(cu_seqlens, mask, reverse)
        dX, dx, dh0 = adjoint(dh, dh_final, *inputs, h0, sequences, *gate)
        return dX.to(inputs[0].dtype), dx.to(inputs[1].dtype), dh0

    def adjoint_fake(dh, dh_final, X, x, *_):
        dh0 = dh_final.new_empty(dh_final.shape, dtype=state_dtype(X, x))
        return X.new_empty(X.shape), x.new_empty(x.shape), dh0

    def setup_context(ctx, inputs, output):
        X, x, h0, cu_seqlens, mask, *ctx.options = inputs
        ctx.dtypes = [None if y is None else y.dtype for y in (X, x, h0)]
        driver = (x,) if gated else ()
        ctx.save_for_backward(X, *driver, output[0], h0, cu_seqlens, mask)

    def gradient(ctx, dh, dh_final):
        *inputs, cu_seqlens, mask = ctx.saved_tensors
        reverse, *gate = ctx.options
        sequences = Sequences(cu_seqlens, mask, reverse)
        gradients = backward(dh, dh_final, *inputs, sequences, *gate)
        return *cast_each(gradients, ctx.dtypes), *[None] * (3 + gated)

    options = "Tensor? h0, Tensor? cu_seqlens, Tensor? mask, bool reverse"
    options += ", str gate" if gated else ""
    inputs = "Tensor X, Tensor x, Tensor h" if gated else "Tensor X, Tensor h"
    define_op(name, f"(Tensor X, Tensor x, {options}) -> (Tensor, Tensor)", scan_body, fake)
    define_op(
        f"{name}_backward",
        f"(Tensor dh, Tensor dh_final, {inputs}, {options}) -> (Tensor, Tensor, Tensor)",
        adjoint_body,
        adjoint_fake,
    )
    define_gradient(name, gradient, setup_context)
    OPS.extend([name, f"{name}_backward"])


def define_op(name: str, schema: str, body: Callable[..., Any], fake: Callable[..., Any]) -> None:
    """Register `statemix::name`; `body` computes it on every device without a kernel."""
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
    """Register `kernel`, called with the arguments of the op, for `statemix::name` on `device`."""
    if name not in OPS:
        raise ValueError(f"Unknown op {name!r}. Available: {', '.join(OPS)}.")
    if device not in DEVICES:
        raise ValueError(f"Unknown device {device!r}. Available: {', '.join(DEVICES)}.")
    torch.library.impl(f"{NAMESPACE}::{name}", device, kernel)
    KERNELS[name, device] = label


def cast_each(
    gradients: tuple[Tensor, ...], dtypes: list[torch.dtype | None]
) -> list[Tensor | None]:
    """Each gradient in the dtype of its input, None for an input that is None."""
    return [
        None if dtype is None else g.to(dtype) for g, dtype in zip(gradients, dtypes, strict=True)
    ]


@dataclass(frozen=True)
class KernelChoice:
    """The code that computes an op on a device, and the reason."""

    op: str
    device: str
    kernel: str
    why: str


def kernel_choices() -> list[KernelChoice]:
    """The code that computes each op, for each device of this machine."""
    devices = [device for device in DEVICES if device == "cpu" or torch.cuda.is_available()]
    return [_choose(op, device) for op in OPS for device in devices]


def _choose(op: str, device: str) -> KernelChoice:
    if (op, device) in KERNELS:
        return KernelChoice(op, device, KERNELS[op, device], "registered for this op and device")
    why = REASONS.get((op, device), f"no {device} kernel is registered")
    return KernelChoice(op, device, "plain torch", why)


def withdraw(name: str, device: str, reason: str) -> None:
    """Record that the plain body computes `statemix::name` on `device`, and why."""
    KERNELS.pop((name, device), None)
    REASONS[name, device] = reason
