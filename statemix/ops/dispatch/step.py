"""Steps of decoding in one call of the CPU library, without gradients and in float32.

Both functions return None if the caller should run the lines of its own `step`.
"""

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, Weights
from statemix.kernels.cpu import scans, step
from statemix.kernels.cpu.library import Library, Missing
from statemix.kernels.cpu.step import Block, Norm
from statemix.ops.dispatch.cpu import find_library
from statemix.ops.dispatch.registry import Pair, in_transform
from statemix.ops.precision import is_autocast

__all__ = ["Block", "Norm", "fused_block_step", "fused_layer_step"]

MOST = 32  # sequences up to which reading the weights takes longer than multiplying by them


def fused_layer_step(
    x: Tensor, weights: Weights | None, h0: Tensor | None, recurrence: Recurrence, gate: str
) -> Pair | None:
    """(y, next state) of a layer, for x (B, d) and the state h0 (B, n, m)."""
    library = _library(x, weights, h0, gate)
    if library is None or weights is None:
        return None
    return step.layer_step(library, recurrence, gate, weights, x.contiguous(), _dense(h0))


def fused_block_step(
    x: Tensor,
    weights: Weights | None,
    block: Block,
    h0: Tensor | None,
    recurrence: Recurrence,
    gate: str,
) -> Pair | None:
    """(residual stream, next state) of a norm, a layer, a norm and a SwiGLU."""
    library = _library(x, weights, h0, gate)
    if library is None or weights is None:
        return None
    around = (block.norm.weight, block.mlp_norm.weight, block.W_1, block.W_3, block.W_2)
    if not all(_is_readable(w) for w in around):
        return None
    return step.block_step(library, recurrence, gate, weights, block, x.contiguous(), _dense(h0))


def _library(x: Tensor, weights: Weights | None, h0: Tensor | None, gate: str) -> Library | None:
    """The library if it computes this step."""
    if weights is None or torch.compiler.is_compiling() or torch.is_grad_enabled():
        return None
    if x.dtype != torch.float32 or not 0 < x.shape[0] <= MOST or x.device.type != "cpu":
        return None
    if is_autocast(x) or in_transform() or torch._C._len_torch_dispatch_stack():
        return None
    library = find_library()
    if isinstance(library, Missing) or weights.m > library.max_size:
        return None
    if gate not in scans.SUPPORTED_GATES or (h0 is not None and h0.dtype != torch.float32):
        return None
    return library if all(_is_readable(w) for w in weights) else None


def _is_readable(w: Tensor) -> bool:
    return w.dtype == torch.float32 and w.is_contiguous() and w.device.type == "cpu"


def _dense(h0: Tensor | None) -> Tensor | None:
    return None if h0 is None else h0.contiguous()
