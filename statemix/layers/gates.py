"""Where raw gates come from: three degrees of selectivity.

    full        g[t] = W x[t] + c           every gate sees the whole input
    pointwise   g[t] = w ⊙ p[t] + c         each row of gates sees its own channel p of the input alone
    none        g[t] = w                    gates are parameters, the same at every step

A row is one softmax: the gates that write one state.  `p` is x itself where x has one channel a row, else a projection.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statemix.ops.check import check_choice

INIT_STD = 0.02


class Projection(nn.Linear):
    """A linear map that starts from N(0, 0.02) and no bias, as in the paper's models: softmax gates start out uniform."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class FullGates(Projection):
    """Gates as a linear function of the input."""

    def __init__(
        self,
        d_model: int,
        rows: int,
        columns: int,
        *,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        self.rows, self.columns = rows, columns
        super().__init__(d_model, rows * columns, device=device, dtype=dtype)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch rows columns"]:
        return super().forward(x).unflatten(-1, (self.rows, self.columns))


class PointwiseGates(nn.Module):
    """Gates as an affine function of one channel of the input each."""

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
            else Projection(d_model, rows, bias=False, device=device, dtype=dtype)
        )
        self.weight = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=INIT_STD)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch rows columns"]:
        return self.project(x).unsqueeze(-1) * self.weight + self.bias


class FixedGates(nn.Module):
    """Gates as parameters, which no input moves."""

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
        self.weight = nn.Parameter(torch.empty(rows, columns, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.weight)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch rows columns"]:
        return self.weight.to(x.dtype).expand(*x.shape[:-1], *self.weight.shape)


Gates = FullGates | PointwiseGates | FixedGates
SELECTIVITY: dict[str, type[Gates]] = {
    "full": FullGates,
    "pointwise": PointwiseGates,
    "none": FixedGates,
}


def make_gates(
    selectivity: str,
    d_model: int,
    rows: int,
    columns: int,
    *,
    device: torch.device | str | None,
    dtype: torch.dtype | None,
) -> Gates:
    """A module from x (..., d) to raw gates (..., rows, columns)."""
    check_choice("selectivity", selectivity, SELECTIVITY)
    return SELECTIVITY[selectivity](d_model, rows, columns, device=device, dtype=dtype)


def linear_parameters(gates: nn.Module) -> list[Tensor]:
    """The parameters that raw gates are jointly linear in: all but those of a projection of the input, which `weight` multiplies again."""
    return [p for name, p in gates.named_parameters() if not name.startswith("project.")]
