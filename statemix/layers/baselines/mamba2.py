"""Mamba-2: one decay a head, a matrix of states, computed in chunks."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix.layers.baselines.lru import row_mask
from statemix.layers.baselines.matrix import matrix_scan
from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes

State = tuple[Tensor, Tensor | None]


@register_mixer("mamba2")
class Mamba2(RaggedMixer):
    """Mamba-2's layer.

        (z, u, B, C, δ) = W_in x,    (u, B, C) = silu(conv(u, B, C)),    Δ = softplus(δ + bias)
        S[t] = exp(−Δ a) S[t-1] + Δ u[t] B[t]ᵀ,    y[t] = W_out norm((S[t] C[t] + D u[t]) ⊙ silu(z[t]))

    A state is (S (B, heads, head_dim, d_state), the convolution's inputs).

    Args:
        d_state: columns of S.
        expand: inner width over d_model.
        head_dim: rows of S; the inner width must be a multiple of it.
        conv: steps of the short convolution, 0 for none.
        output_gate: multiply by silu(z).
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        expand: int = 2,
        head_dim: int = 64,
        conv: int = 4,
        output_gate: bool = True,
    ) -> None:
        super().__init__()
        check_sizes(
            {"d_model": d_model, "d_state": d_state, "expand": expand, "head_dim": head_dim}
        )
        self.d_model, self.d_state, self.inner, self.head_dim, self.output_gate = (
            d_model,
            d_state,
            expand * d_model,
            head_dim,
            output_gate,
        )
        if self.inner % head_dim:
            raise ValueError(
                f"`head_dim` must divide the inner width {self.inner} = expand · d_model, got {head_dim}."
            )
        self.heads = self.inner // head_dim
        mixed = self.inner + 2 * d_state
        self.W_in = make_linear(d_model, mixed + self.heads + self.inner * output_gate, bias=False)
        self.conv = make_short_conv(mixed, conv)
        delta = torch.exp(
            torch.rand(self.heads) * (math.log(0.1) - math.log(1e-3)) + math.log(1e-3)
        )
        self.delta_bias = nn.Parameter(delta + torch.log(-torch.expm1(-delta)))
        self.log_a = nn.Parameter(torch.log(1 + 15 * torch.rand(self.heads)))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.inner, eps=1e-5)
        self.W_out = make_linear(self.inner, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """S, and the inputs that the convolution still sees."""
        return self.inner * self.d_state + (
            (self.conv.size - 1) * (self.inner + 2 * self.d_state) if self.conv else 0
        )

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """All rows, each up to its length."""
        S, before = (None, None) if state is None else state
        sizes = [self.inner + 2 * self.d_state, self.heads] + [self.inner] * self.output_gate
        mixed, delta, *gate = self.W_in(x).split(sizes, -1)
        if self.conv is not None:
            mixed, before = self.conv(mixed, before, lengths)
        u, B, C = mixed.split([self.inner, self.d_state, self.d_state], -1)
        u = u.unflatten(2, (self.heads, self.head_dim))
        delta = F.softplus(delta + self.delta_bias)
        q, k = (y.unsqueeze(2).expand(-1, -1, self.heads, -1) for y in (C, B))
        o, S = matrix_scan(
            q, k, delta.unsqueeze(-1) * u, None, -delta * self.log_a.exp(), S, row_mask(x, lengths)
        )
        y = (o + self.D[:, None] * u).flatten(2)
        y = y * F.silu(gate[0]) if gate else y
        return self.W_out(self.norm(y)), (S, before)
