"""One step of decoding: a layer, or a residual block of a norm, a layer, a norm and an MLP.

    s = W_g z + c,    v = W_v z,    h ← scan(s, v, h),    y = W_o h

One call of the library replaces some twenty ops, whose overhead is larger than the arithmetic of a
small model.
"""

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, Weights
from statemix.kernels.cpu.library import Library
from statemix.kernels.cpu.scans import GATES, POINTER

__all__ = ["Block", "Norm", "block_step", "layer_step"]

_TENSORS = ("x", "norm", "W_g", "c", "W_v", "W_o", "h0", "mlp_norm", "W_1", "W_3", "W_2", "h", "y")


class _Step(ctypes.Structure):
    """`struct statemix_step`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("B", "d", "n", "inner")),
        *((name, ctypes.c_int32) for name in ("m", "gate")),
        *((name, ctypes.c_float) for name in ("epsilon", "mlp_epsilon")),
        *((name, POINTER) for name in _TENSORS),
    )


@dataclass(frozen=True)
class Norm:
    """The weight of an RMS norm, and its epsilon."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True)
class Block:
    """What surrounds the layer of a residual block: two norms and a SwiGLU."""

    norm: Norm
    mlp_norm: Norm
    W_1: Tensor
    W_3: Tensor
    W_2: Tensor


def layer_step(
    library: Library,
    recurrence: Recurrence,
    gate: str,
    weights: Weights,
    x: Tensor,
    h0: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(y, next state) of a layer, for x (B, d) and the state h0 (B, n, m)."""
    return _run(library, recurrence, gate, weights, x, h0, None)


def block_step(
    library: Library,
    recurrence: Recurrence,
    gate: str,
    weights: Weights,
    block: Block,
    x: Tensor,
    h0: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(residual stream, next state) of a block."""
    return _run(library, recurrence, gate, weights, x, h0, block)


def _run(
    library: Library,
    recurrence: Recurrence,
    gate: str,
    weights: Weights,
    x: Tensor,
    h0: Tensor | None,
    block: Block | None,
) -> tuple[Tensor, Tensor]:
    n, m = weights.state_shape(recurrence)
    B, d = x.shape
    y = torch.empty_like(x)
    h = x.new_empty((B, n, m))
    before = None if h0 is None else h0.data_ptr()
    own = (weights.W_g, weights.c, weights.W_v, weights.W_o)
    layer = (w.data_ptr() for w in own)
    if block is None:
        sizes = (B, d, n, 0, m, GATES[gate], 0.0, 0.0)
        pointers = (x.data_ptr(), None, *layer, before, None, None, None, None)
    else:
        epsilons = (block.norm.epsilon, block.mlp_norm.epsilon)
        sizes = (B, d, n, block.W_1.shape[0], m, GATES[gate], *epsilons)
        around = (block.mlp_norm.weight, block.W_1, block.W_3, block.W_2)
        norm = block.norm.weight.data_ptr()
        pointers = (x.data_ptr(), norm, *layer, before, *(w.data_ptr() for w in around))
    arguments = _Step(*sizes, *pointers, h.data_ptr(), y.data_ptr())
    if library.handle.statemix_decode(ctypes.byref(arguments), int(recurrence.is_block)) != 0:
        raise MemoryError("The CPU kernel could not allocate scratch memory. Free some memory.")
    return y, h
