"""PD-SSM: each state copies one other state, multiplied by a complex number."""

import math

import torch
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.lru import row_mask
from statemix.layers.baselines.ragged import RaggedMixer
from statemix.layers.mixer import ReadsTables, register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops.lookup import Lookup, at_each_step
from statemix.ops.normalise import normalise
from statemix.ops.precision import state_dtype, without_autocast

__all__ = ["PDSSM"]

CHUNK = 16  # steps whose N × N matrices are in memory at the same time, without gradients


@register_mixer("pdssm")
class PDSSM(RaggedMixer, ReadsTables):
    """A state space model whose transition selects one entry per row, as in its PyTorch code.

        P = hardmax(Σ_k softmax(S x)_k M_k)             row by row; backwards it is softmax
        λ = σ(f_1(x)) exp(2π i σ(f_2(x)))               f_1, f_2: MLPs with one hidden layer
        h[t] = λ ⊙ (P h[t-1]) + B x[t],    h[-1] = (1, 0, .. 0),    complex
        y[t] = W (Re h[t], Im h[t]) + D ⊙ x[t]

    The paper's equations have one-hot columns, and its code one-hot rows. Dropout and the norm
    after the layer belong to the model. A state is (B, states, 2): real and imaginary parts.

    Args:
        states: number of complex states N; d_model if None.
        dictionary: number of matrices M_k.
    """

    def __init__(self, d_model: int, states: int | None = None, dictionary: int = 8) -> None:
        super().__init__()
        self.d_model = d_model
        self.states = N = d_model if states is None else states
        check_sizes({"d_model": d_model, "states": N, "dictionary": dictionary})
        self.select = nn.Linear(d_model, dictionary, bias=False)
        self.M = nn.Parameter(torch.randn(dictionary, N, N) / N**0.5)
        self.magnitude = _mlp(d_model, N)
        self.phase = _mlp(d_model, N)
        self.B = nn.Parameter(torch.randn(N, 2, d_model) / (2 * N) ** 0.5)
        self.D = nn.Parameter(torch.randn(d_model) / d_model**0.5)
        self.W = nn.Linear(2 * N, d_model)

    @property
    def state_size(self) -> int:
        """Number of real and imaginary parts."""
        return 2 * self.states

    def run(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: Float[Tensor, "B N 2"] | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], Float[Tensor, "B N 2"]]:
        """Run all rows, each up to its length."""
        factor = at_each_step(self._factors, x).unflatten(-1, (-1, 2))
        b = at_each_step(self._inputs, x).unflatten(-1, (-1, 2))
        h = self._start(b) if state is None else state.to(b.dtype)
        real = row_mask(b, lengths)
        table = self._selection(x.table) if isinstance(x, Lookup) else None
        outputs = [b[:, :0]]
        with without_autocast(b.device):
            for start in range(0, x.shape[1], CHUNK):
                part = slice(start, start + CHUNK)
                P = self._selection_at(x, table, part)
                keep = None if real is None else real[:, part]
                steps, h = _select_loop(P, factor[:, part], b[:, part], h, keep)
                outputs.append(steps)
        read = torch.cat(outputs, 1).mT.flatten(2)
        y = self.W(read.to(self.W.weight.dtype)) + at_each_step(lambda x: self.D * x, x)
        return y, h

    def _selection(self, x: Tensor) -> Tensor:
        """P (..., N, N), one-hot in each row."""
        mixed = torch.softmax(self.select(x), -1) @ self.M.flatten(1)
        return normalise(mixed.to(state_dtype(mixed)).unflatten(-1, self.M.shape[1:]), "hardmax")

    def _selection_at(self, x: Tensor | Lookup, table: Tensor | None, part: slice) -> Tensor:
        """P (B, T, N, N) at some steps, looked up in `table` if x is a `Lookup`."""
        if isinstance(x, Lookup):
            assert table is not None
            return table[x.tokens[:, part]]
        return self._selection(x[:, part])

    def _factors(self, x: Tensor) -> Tensor:
        """The complex factors λ (..., 2 N), real and imaginary parts in turn."""
        dtype = state_dtype(x)
        size = torch.sigmoid(self.magnitude(x).to(dtype))
        phase = 2 * math.pi * torch.sigmoid(self.phase(x).to(dtype))
        return torch.stack([size * phase.cos(), size * phase.sin()], -1).flatten(-2)

    def _inputs(self, x: Tensor) -> Tensor:
        """B x (..., 2 N), real and imaginary parts in turn."""
        return nn.functional.linear(x, self.B.flatten(0, 1)).to(state_dtype(x))

    def _start(self, b: Tensor) -> Tensor:
        """The initial state (1, 0, .. 0)."""
        h = b.new_zeros((len(b), self.states, 2))
        h[:, 0, 0] = 1
        return h


def _mlp(d: int, states: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, 2 * states), nn.GELU(), nn.Linear(2 * states, states))


def _select_loop(
    P: Float[Tensor, "B T N N"],
    factor: Float[Tensor, "B T N 2"],
    b: Float[Tensor, "B T N 2"],
    h: Float[Tensor, "B N 2"],
    real: Bool[Tensor, "B T"] | None,
) -> tuple[Float[Tensor, "B T N 2"], Float[Tensor, "B N 2"]]:
    """The states h[t] = λ[t] ⊙ (P[t] h[t-1]) + b[t] of all steps, and the last one."""
    states = []
    steps = zip(P.unbind(1), factor.unbind(1), b.unbind(1), strict=True)
    for t, (P_t, factor_t, b_t) in enumerate(steps):
        moved = _times(factor_t, P_t @ h) + b_t
        h = moved if real is None else torch.where(real[:, t, None, None], moved, h)
        states.append(h)
    return torch.stack(states, 1), h


def _times(x: Tensor, y: Tensor) -> Tensor:
    """The product of complex numbers (..., 2)."""
    a, b = x.unbind(-1)
    c, d = y.unbind(-1)
    return torch.stack([a * c - b * d, a * d + b * c], -1)
