"""Mamba-2: one decay per head and matrix-valued states, computed in chunks."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.heads import count_parts
from statemix.layers.baselines.lru import draw_delta_bias, row_mask
from statemix.layers.baselines.matrix import matrix_scan
from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import ReadsTables, register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops.lookup import Lookup, at_each_step

__all__ = ["Mamba2"]

State = tuple[Float[Tensor, "B heads d_v d_k"], Float[Tensor, "B k c"] | None]


@register_mixer("mamba2")
class Mamba2(RaggedMixer, ReadsTables):
    """Mamba-2's layer.

        (z, u, B, C, δ) = W_in x,    (u, B, C) = silu(conv(u, B, C)),    Δ = softplus(δ + bias)
        S[t] = exp(−Δ a) S[t-1] + Δ u[t] B[t]ᵀ
        y[t] = W_out norm((S[t] C[t] + D u[t]) ⊙ silu(z[t]))

    A state is (S (B, heads, head_dim, d_state), the convolution's inputs).

    Args:
        d_state: number of columns of S.
        expand: ratio of the inner width to d_model.
        head_dim: number of rows of S, which must divide the inner width.
        conv: steps of the short convolution (0: none).
        output_gate: multiply the output by silu(z).
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
        self.d_model = d_model
        self.d_state = d_state
        self.inner = expand * d_model
        self.head_dim = head_dim
        self.output_gate = output_gate
        inner_width = f"the inner width {self.inner} = expand · d_model"
        self.heads = count_parts("head_dim", head_dim, self.inner, inner_width)
        mixed = self.inner + 2 * d_state
        self.W_in = make_linear(d_model, mixed + self.heads + self.inner * output_gate, bias=False)
        self.conv = make_short_conv(mixed, conv)
        self.delta_bias = nn.Parameter(draw_delta_bias(self.heads))
        self.log_a = nn.Parameter(torch.log(1 + 15 * torch.rand(self.heads)))
        self.D = nn.Parameter(torch.ones(self.heads))
        self.norm = nn.RMSNorm(self.inner, eps=1e-5)
        self.W_out = make_linear(self.inner, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """Number of scalars in S and in the inputs of the convolution."""
        inputs = (self.conv.size - 1) * (self.inner + 2 * self.d_state) if self.conv else 0
        return self.inner * self.d_state + inputs

    def run(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: State | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length."""
        S, before = (None, None) if state is None else state
        sizes = [self.inner + 2 * self.d_state, self.heads] + [self.inner] * self.output_gate
        mixed, delta, *gate = at_each_step(self.W_in, x).split(sizes, -1)
        if self.conv is not None:
            mixed, before = self.conv(mixed, before, lengths)
        u, B, C = mixed.split([self.inner, self.d_state, self.d_state], -1)
        u = u.unflatten(2, (self.heads, self.head_dim))
        delta = F.softplus(delta + self.delta_bias)
        q, k = (y.unsqueeze(2).expand(-1, -1, self.heads, -1) for y in (C, B))
        o, S = matrix_scan(
            q,
            k,
            delta.unsqueeze(-1) * u,
            None,
            -delta * self.log_a.exp(),
            S,
            row_mask(mixed, lengths),
        )
        y = (o + self.D[:, None] * u).flatten(2)
        y = y * F.silu(gate[0]) if gate else y
        return self.W_out(self.norm(y)), (S, before)
