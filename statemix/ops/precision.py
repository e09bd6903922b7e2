"""The dtype in which a scan computes, and the dtype that it returns.

States and sums are float32, or float64 if an input is. Outputs have the dtype of the inputs.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import reduce

import torch
from torch import Tensor

__all__ = [
    "cast_like",
    "cast_under_autocast",
    "is_autocast",
    "output_and_state",
    "output_dtype",
    "promote",
    "state_dtype",
    "without_autocast",
]


def output_dtype(*inputs: Tensor) -> torch.dtype:
    """The promoted dtype of `inputs`."""
    return reduce(torch.promote_types, (x.dtype for x in inputs))


def output_and_state(state: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """The state cast to the promoted dtype of `inputs`, and the state; they never share memory."""
    return state.to(output_dtype(*inputs), copy=True), state


def state_dtype(*inputs: Tensor) -> torch.dtype:
    """The dtype of states and sums: float64 if any input is, else float32."""
    return torch.float64 if output_dtype(*inputs) == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context that disables autocast on `device`, if the device has autocast (meta has not)."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def is_autocast(x: Tensor) -> bool:
    """True if autocast is enabled on the device of `x`."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def cast_under_autocast(*inputs: Tensor) -> tuple[Tensor, ...]:
    """All inputs in autocast's dtype if it is enabled on their device, else unchanged."""
    if not is_autocast(inputs[0]):
        return inputs
    dtype = torch.get_autocast_dtype(inputs[0].device.type)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in inputs)


def promote(*inputs: Tensor) -> tuple[Tensor, ...]:
    """All inputs in the dtype of states, so that a scan over them returns unrounded states."""
    dtype = state_dtype(*inputs)
    return tuple(x.to(dtype) for x in inputs)


def cast_like(x: Tensor, other: Tensor) -> Tensor:
    """`x` in the dtype of `other`."""
    return x.to(other.dtype)
