"""The tensors behind a layer's projections.

Only this module looks at hooks and parametrisations.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.utils.parametrize import is_parametrized

from statemix.ops.dispatch.layer import Weights
from statemix.ops.dispatch.linear import linear

__all__ = ["has_hooks", "input_dtype", "is_altered", "is_plain", "plain_weights", "project"]


def plain_weights(W_g: nn.Module, W_v: nn.Module, W_o: nn.Module) -> Weights | None:
    """The tensors of a layer's projections if they are plain `nn.Linear`s, else None.

    With any other projection, a fused op would skip code that users added.
    """
    if _has_any_global_hook() or not (is_plain(W_g) and is_plain(W_v) and is_plain(W_o)):
        return None
    if W_g.bias is None or W_v.bias is not None or W_o.bias is not None:
        return None
    return Weights(W_g.weight, W_g.bias, W_v.weight, W_o.weight)


def project(linear_map: nn.Module, x: Tensor) -> Tensor:
    """`linear_map(x)`, by the faster library if it is a plain `nn.Linear`."""
    if _has_any_global_hook() or not is_plain(linear_map):
        return linear_map(x)
    plain = cast(nn.Linear, linear_map)
    return linear(x, plain.weight, plain.bias)


def input_dtype(linear_map: nn.Module) -> torch.dtype:
    """The dtype of a projection's inputs.

    The weight of a dynamically quantised `nn.Linear` is a method; its inputs are float32.
    """
    weight = linear_map.weight
    return weight.dtype if isinstance(weight, Tensor) else torch.float32


def is_altered(module: nn.Module) -> bool:
    """True if a module or a part of it has hooks or parametrisations."""
    return any(has_hooks(part) or is_parametrized(part) for part in module.modules())


def has_hooks(module: nn.Module) -> bool:
    """True if a forward or backward hook is registered on the module itself."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_plain(module: nn.Module) -> bool:
    """True for an `nn.Linear` with plain parameters, no hooks, and its own forward."""
    if type(module) is not nn.Linear or has_hooks(module) or "forward" in vars(module):
        return False
    own = module._parameters.values()  # faster than parameters(), and a plain map has no children
    return all(p is None or type(p) is nn.Parameter for p in own)
