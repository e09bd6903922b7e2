"""SLiCE: a linear recurrence in blocks, driven by the increments of its input."""

import math

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.heads import count_parts
from statemix.layers.baselines.lru import row_mask
from statemix.layers.baselines.ragged import RaggedMixer, last_inputs
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops import block_scan
from statemix.ops.check import check_choice
from statemix.ops.precision import state_dtype

__all__ = ["SLiCE"]

PATHS = ("values", "increments")
State = tuple[Float[Tensor, "B n m"], Float[Tensor, "B 1 d"]]


@register_mixer("slice")
class SLiCE(RaggedMixer):
    """A structured linear controlled differential equation with blocks on the diagonal.

        X[t] = scale · (1, x[t] − x[t-1]),    x[-1] = 0
        y[t] = y[t-1] + A(X[t]) y[t-1] + B(X[t]),    y[-1] = y0

    A and B are linear maps, y0 is learned, and A consists of blocks. The output is the state, so
    its width is d_model. Nothing bounds the state. This is the layer of torch-slices 0.3.2 with its
    defaults. A state is (y (B, n, m), the last x).

    Args:
        block_size: rows of a block, which must divide d_model.
        path: "values" as above, or "increments", where X[t] = scale · (1, x[t]).
        scale: factor of X.
        init_std: standard deviation of y0 and B at the start; that of A is smaller by √block_size.
    """

    def __init__(
        self,
        d_model: int,
        block_size: int = 4,
        path: str = "values",
        scale: float = 1.0,
        init_std: float = 0.01,
    ) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "block_size": block_size})
        check_choice("path", path, PATHS)
        if not 0 <= init_std < math.inf:
            raise ValueError(f"`init_std` must be finite and not negative, got {init_std}.")
        count_parts("block_size", block_size, d_model, f"the width d_model = {d_model}")
        self.d_model = d_model
        self.block_size = block_size
        self.path = path
        self.scale = scale
        self.A = nn.Linear(d_model, d_model * block_size)
        self.B = nn.Linear(d_model, d_model)
        self.y0 = nn.Parameter(init_std * torch.randn(d_model))
        for linear, std in ((self.A, init_std * block_size**-0.5), (self.B, init_std)):
            nn.init.normal_(linear.weight, std=std)
            nn.init.normal_(linear.bias, std=std)

    @property
    def state_size(self) -> int:
        """Number of scalars in y and in the last x."""
        return 2 * self.d_model

    def run(
        self,
        x: Float[Tensor, "B T d"],
        state: State | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length."""
        m = self.block_size
        if state is None:
            start = self.y0.unflatten(0, (-1, m)).expand(len(x), -1, -1)
            state = (start, x.new_zeros((len(x), 1, self.d_model)))
        y, before = state
        X = x.diff(dim=1, prepend=before) if self.path == "values" else x
        dtype = state_dtype(x)
        A = self.scale * self.A(X).to(dtype).unflatten(2, (-1, m, m))
        b = self.scale * self.B(X).to(dtype).unflatten(2, (-1, m))
        M = torch.eye(m, dtype=dtype, device=x.device) + A
        h, y = block_scan(M, b, y, mask=row_mask(x, lengths))
        return h.flatten(2).to(x.dtype), (y, last_inputs(x, before, lengths))
