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
