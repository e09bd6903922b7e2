"""The gated activation of an MLP, and losses with their gradients, by the CPU library.

    y = silu(a) ⊙ b,    da = σ(a) (1 + a σ(−a)) b dy,    db = silu(a) dy

Plain torch computes them on other devices, in compiled code and transforms, and for second
derivatives.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.kernels.cpu import dense
from statemix.kernels.cpu.library import Library, Missing
from statemix.ops.dispatch.cpu import find_library
from statemix.ops.dispatch.registry import in_transform

__all__ = ["gated_activation", "softmax_minus_onehot"]


def gated_activation(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) ⊙ b."""
    if _library(a, b) is None or a.shape != b.shape or in_transform():
        return F.silu(a) * b
    return _GatedActivation.apply(a, b)


def softmax_minus_onehot(
    logits: Tensor, targets: Tensor, ignored: int, *, gradient: bool
) -> float | None:
    """The sum of the losses of rows of logits (N, V), which become their gradient if wanted.

    Returns None, and leaves the logits unchanged, if the library does not compute them.
    """
    library = _library(logits)
    if library is None or targets.dtype != torch.int64 or not logits.is_contiguous():
        return None
    return dense.cross_entropy(library, logits, targets.contiguous(), ignored, gradient=gradient)


def _library(*tensors: Tensor) -> Library | None:
    """The library if it can read these tensors, which have one dtype."""
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        return None
    first, *_ = tensors
    if first.dtype not in dense.DTYPES or any(x.dtype != first.dtype for x in tensors):
        return None
    if any(type(x) is not Tensor or x.device.type != "cpu" for x in tensors):
        return None
    library = find_library()
    return None if isinstance(library, Missing) else library


class _GatedActivation(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        a, b = a.contiguous(), b.contiguous()
        ctx.save_for_backward(a, b)
        library = find_library()
        assert isinstance(library, Library)
        return dense.gated_activation(library, a, b)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        library = _library(a, b, dy)
        if library is None or torch.is_grad_enabled():
            s = torch.sigmoid(a)
            return s * (1 + a * (1 - s)) * b * dy, s * a * dy
        return dense.gated_activation_gradient(library, a, b, dy.contiguous())
