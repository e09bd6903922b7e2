"""Linear maps y = W x + c, computed on the CPU by the faster library in torch.

    dx = Wᵀ dy,    dW = Σ dy xᵀ,    dc = Σ dy

Everything else runs `torch.nn.functional.linear`: other dtypes and devices, autocast, compiled code
and transforms, and second derivatives.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.kernels.cpu.products import Choice, add_product, choices, product
from statemix.ops.dispatch.registry import in_transform
from statemix.ops.precision import is_autocast

__all__ = ["Choice", "add_product", "choices", "linear", "product"]


def linear(x: Tensor, W: Tensor, c: Tensor | None = None) -> Tensor:
    """W x + c at every step, for x (..., d), W (d_out, d) and c (d_out)."""
    if not _has_faster_library(x, W):
        return F.linear(x, W, c)
    return _Linear.apply(x.reshape(-1, x.shape[-1]), W, c).view(*x.shape[:-1], W.shape[0])


def _has_faster_library(x: Tensor, W: Tensor) -> bool:
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.numel() == 0:
        return False
    floats = x.dtype == W.dtype == torch.float32
    return floats and type(x) is Tensor and not is_autocast(x) and not in_transform()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, W: Tensor, c: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, W)
        return product(x, W.t(), c)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, W = ctx.saved_tensors
        multiply = torch.mm if torch.is_grad_enabled() else product
        dx = multiply(dy, W) if ctx.needs_input_grad[0] else None
        dW = multiply(x.t(), dy).t() if ctx.needs_input_grad[1] else None
        return dx, dW, dy.sum(0) if ctx.needs_input_grad[2] else None
