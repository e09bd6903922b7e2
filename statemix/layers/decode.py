"""A decoding step of a residual block in one call, if all its parts are plain."""

from typing import Any

from torch import Tensor, nn

from statemix.layers.mlp import SwiGLU
from statemix.layers.unit import LinearRecurrentUnit
from statemix.layers.weights import has_hooks, is_plain
from statemix.ops.dispatch.step import Block, Norm

__all__ = ["step_of_block"]


def step_of_block(
    norm: nn.Module, mixer: nn.Module, mlp_norm: nn.Module, mlp: nn.Module, x_t: Tensor, state: Any
) -> tuple[Tensor, Any] | None:
    """(residual stream, next state) after one step; None if the block should run line by line."""
    if not isinstance(mixer, LinearRecurrentUnit) or type(mlp) is not SwiGLU or has_hooks(mlp):
        return None
    linears = (mlp.W_1, mlp.W_3, mlp.W_2)
    first, second = _norm(norm), _norm(mlp_norm)
    if first is None or second is None or not all(map(is_plain, linears)):
        return None
    block = Block(first, second, *(linear.weight for linear in linears))
    return mixer.step_in_block(x_t, state, block)


def _norm(norm: nn.Module) -> Norm | None:
    """The weight and epsilon of an `nn.RMSNorm` over one axis; None for any other module."""
    if type(norm) is not nn.RMSNorm or has_hooks(norm) or norm.weight is None:
        return None
    if norm.eps is None or norm.weight.dim() != 1:
        return None
    return Norm(norm.weight, norm.eps)
