"""Which dtype a scan computes in, and which it returns.

States and sums are float32, or float64 when an input is; outputs come back in the inputs' own dtype.
"""

from functools import reduce

import torch
from torch import Tensor


def output_dtype(*inputs: Tensor) -> torch.dtype:
    """The dtype that torch's promotion gives to `inputs` together."""
    return reduce(torch.promote_types, (x.dtype for x in inputs))


def state_dtype(*inputs: Tensor) -> torch.dtype:
    """The dtype of states and sums: float64 if any input is, else float32."""
    return torch.float64 if output_dtype(*inputs) == torch.float64 else torch.float32
