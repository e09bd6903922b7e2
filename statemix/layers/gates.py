"""Where raw gates come from: three degrees of selectivity.

    full        g[t] = W x[t] + c           every gate sees the full input
    pointwise   g[t] = w ⊙ p[t] + c         each row of gates sees one channel p of the input
    none        g[t] = w                    gates are parameters, the same at every step; without
                                            a gate function, g[t] = w / (m + 1)

With a rank r, full gates are low-rank: W = U P with P (r, d), so that g[t] = U (P x[t]) + c.

A row is one softmax: the gates that write one state. `p` is x itself if x has one channel per row,
otherwise a projection of x.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statemix.ops.check import check_choice

__all__ = [
    "INIT_STD",
    "FixedGates",
    "Gates",
    "LowRankGates",
    "PointwiseGates",
    "linear_parameters",
    "make_gates",
    "make_linear",
]

INIT_STD = 0.02


def make_linear(
    d_in: int,
    d_out: int,
    *,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.Linear:
    """An `nn.Linear` initialised as in the paper's models: weights from N(0, 0.02²), zero bias.

    Softmax gates therefore start out nearly uniform.
    """
    device = torch.get_default_device() if device is None else device
    linear = nn.utils.skip_init(nn.Linear, d_in, d_out, bias=bias, device=device, dtype=dtype)
    # FSDP resets every module by itself, and torch's own rule for linear maps is another one.
    linear.reset_parameters = partial(_reset, linear)
    linear.reset_parameters()
    return linear


def _reset(linear: nn.Linear) -> None:
    """Reset the parameters of a linear map: weights from N(0, 0.02²), zero bias."""
    nn.init.normal_(linear.weight, std=INIT_STD)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class PointwiseGates(nn.Module):
    """Each row of gates is an affine function of one channel of the input."""

    def __init__(
        self,
        d_model: int,
        rows: int,
        columns: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.project = (
            nn.Identity()
            if d_model == rows
            else make_linear(d_model, rows, bias=False, device=device, dtype=dtype)
        )
        self.weight = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch gates"]:
        return (self.project(x).unsqueeze(-1) * self.weight + self.bias).flatten(-2)


class LowRankGates(nn.Module):
    """Gates of every input through `rank` channels: g = U (P x) + c.

    P starts as N(0, 1 / rank), which keeps the length of x on average; U starts as the weights of
    full gates do. The raw gates have the same variance, therefore.
    """

    def __init__(
        self,
        d_model: int,
        gates: int,
        rank: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.project = nn.Linear(d_model, rank, bias=False, device=device, dtype=dtype)
        self.weight = nn.Parameter(torch.empty(gates, rank, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(gates, device=device, dtype=dtype))
        project: Any = self.project
        project.reset_parameters = partial(_reset_projection, self.project)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        _reset_projection(self.project)
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch gates"]:
        return F.linear(self.project(x), self.weight, self.bias)


def _reset_projection(linear: nn.Linear) -> None:
    """Reset the projection of low-rank gates: N(0, 1 / rank)."""
    nn.init.normal_(linear.weight, std=linear.out_features**-0.5)


class FixedGates(nn.Module):
    """Gates as parameters, independent of the input, that start as U[0, 1).

    With `shared`, a gate is its parameter divided by the number of gates in a row, so that a row
    sums to less than one at the start without any normalisation.
    """

    def __init__(
        self,
        d_model: int,
        rows: int,
        columns: int,
        *,
        shared: bool = False,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.shared = shared
        self.weight = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch gates"]:
        gates = self.weight / self.weight.shape[1] if self.shared else self.weight
        return gates.to(x.dtype).flatten().expand(*x.shape[:-1], -1)


Gates = nn.Linear | LowRankGates | PointwiseGates | FixedGates
SELECTIVITY = ("full", "pointwise", "none")


def make_gates(
    selectivity: str,
    d_model: int,
    rows: int,
    columns: int,
    *,
    gate: str = "softmax",
    rank: int | None = None,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Gates:
    """A module from x (..., d) to raw gates (..., rows · columns) of the gate function `gate`."""
    check_choice("selectivity", selectivity, SELECTIVITY)
    if rank is not None:
        if selectivity != "full":
            raise ValueError(f"`gate_rank` needs selectivity 'full', got {selectivity!r}.")
        return LowRankGates(d_model, rows * columns, rank, device=device, dtype=dtype)
    if selectivity == "full":
        return make_linear(d_model, rows * columns, device=device, dtype=dtype)
    if selectivity == "pointwise":
        return PointwiseGates(d_model, rows, columns, device=device, dtype=dtype)
    return FixedGates(d_model, rows, columns, shared=gate == "none", device=device, dtype=dtype)


def linear_parameters(gates: nn.Module) -> list[Tensor]:
    """The parameters in which raw gates are jointly linear.

    These are all parameters except a projection of the input, whose output `weight` multiplies.
    """
    return [p for name, p in gates.named_parameters() if not name.startswith("project.")]
