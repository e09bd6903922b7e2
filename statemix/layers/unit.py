"""What both of the paper's layers are made of: gates, two projections, and a state to start from."""

import torch
from torch import Tensor, nn

from statemix.layers.gates import INIT_STD, Gates, init_projection, make_gates
from statemix.ops.check import check_device, check_floating, check_state
from statemix.ops.normalise import find_normaliser


class LinearRecurrentUnit(nn.Module):
    """`W_g`, `W_v` and `W_o` around a state of n × m numbers, written by `rows` rows of m + 1 gates."""

    h0: nn.Parameter | None

    def __init__(
        self,
        d_model: int,
        n: int,
        m: int,
        rows: int,
        *,
        gate: str,
        selectivity: str,
        learn_initial_state: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        find_normaliser(gate)
        self.d_model, self.state_shape = d_model, (n, m)
        self.gate, self.selectivity = gate, selectivity
        self.W_g: Gates = make_gates(selectivity, d_model, rows, m + 1, device=device, dtype=dtype)
        self.W_v = nn.Linear(d_model, rows, bias=False, device=device, dtype=dtype)
        self.W_o = nn.Linear(n * m, d_model, bias=False, device=device, dtype=dtype)
        self.register_parameter("h0", nn.Parameter(torch.empty(n, m, device=device, dtype=dtype)) if learn_initial_state else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew: N(0, 0.02), gates without bias, so that softmax rows start out uniform."""
        self.W_g.reset_parameters()
        init_projection(self.W_v)
        init_projection(self.W_o)
        if self.h0 is not None:
            nn.init.normal_(self.h0, std=INIT_STD)

    @property
    def state_size(self) -> int:
        """Numbers in the state of one sequence: n · m."""
        n, m = self.state_shape
        return n * m

    def start(self, x: Tensor, axes: str, state: Tensor | None, cu_seqlens: Tensor | None = None) -> Tensor | None:
        """Check the input `x`, whose axes are `axes`, and return the state to start from: the one given, the learned one, or None."""
        check_floating("x", x)
        if x.dim() != axes.count(",") + 1 or x.shape[-1] != self.d_model:
            raise ValueError(f"`x` must have the axes {axes} with d = {self.d_model}, got the shape {tuple(x.shape)}.")
        sequences = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if state is not None:
            check_state("state", state, (sequences, *self.state_shape), f"`x`, whose shape is {tuple(x.shape)}")
            check_device("state", state, "x", x)
            return state
        return None if self.h0 is None else self.h0.expand(sequences, *self.state_shape)


def check_sizes(sizes: dict[str, int]) -> None:
    """Every size that a layer is built with is at least one."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"`{name}` must be at least 1, got {size}.")
