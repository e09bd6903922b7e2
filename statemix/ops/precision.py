"""Which dtype a scan computes in, and which it returns.

States and sums are float32, or float64 when an input is; outputs come back in the inputs' own dtype.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import reduce

import torch
from torch import Tensor


def output_dtype(*inputs: Tensor) -> torch.dtype:
    """The dtype that torch's promotion gives to `inputs` together."""
    return reduce(torch.promote_types, (x.dtype for x in inputs))


def output_and_state(state: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
    """A new state as an output in the promoted dtype of `inputs`, and as itself; two tensors, never one twice."""
    return state.to(output_dtype(*inputs), copy=True), state


def state_dtype(*inputs: Tensor) -> torch.dtype:
    """The dtype of states and sums: float64 if any input is, else float32."""
    return torch.float64 if output_dtype(*inputs) == torch.float64 else torch.float32


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """No autocast on `device` meanwhile; some devices, meta for one, have none."""
    has = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if has else nullcontext()


def is_autocast(x: Tensor) -> bool:
    """True if autocast is enabled for the device of `x`; some devices have none."""
    device = x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def promote(*inputs: Tensor) -> tuple[Tensor, ...]:
    """All inputs in the dtype of states, so that a scan of them returns unrounded states."""
    dtype = state_dtype(*inputs)
    return tuple(x.to(dtype) for x in inputs)


def cast_like(x: Tensor, other: Tensor) -> Tensor:
    """`x` in the dtype of `other`."""
    return x.to(other.dtype)
