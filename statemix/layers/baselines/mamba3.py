"""Mamba-3 with one input and one output per head (SISO): trapezoidal steps, rotating keys."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.heads import count_parts
from statemix.layers.baselines.lru import draw_delta_bias, row_mask
from statemix.layers.baselines.matrix import matrix_scan
from statemix.layers.baselines.ragged import RaggedMixer, last_inputs
from statemix.layers.gates import make_linear
from statemix.layers.mixer import ReadsTables, register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops.lookup import Lookup, at_each_step, gather
from statemix.ops.precision import state_dtype

__all__ = ["Mamba3"]

LEAST_DECAY = 1e-4
State = tuple[
    Float[Tensor, "B heads d_v d_k"],
    Float[Tensor, "B heads angles"],
    Float[Tensor, "B heads d_k"],
    Float[Tensor, "B heads d_v"],
]


@register_mixer("mamba3")
class Mamba3(RaggedMixer, ReadsTables):
    """Mamba-3's layer, without convolution.

        (z, v, b, c, δ, a, l, ω) = W_in x,    Δ = softplus(δ + bias),    λ = σ(l)
        θ[t] = θ[t-1] + π tanh(ω) Δ,    k = R(θ) (norm(b) + b_k),    q = R(θ) (norm(c) + b_q)
        S[t] = α S[t-1] + (1 − λ) Δ α v[t-1] k[t-1]ᵀ + λ Δ v[t] k[t]ᵀ
        y[t] = W_out ((S[t] q[t] + D v[t]) ⊙ silu(z[t]))

    α = exp(−φ(a) Δ), where φ(a) = 1 + a for a ≥ 0 and 1 / (1 − a) otherwise. R(θ) rotates the pairs
    (2i, 2i + 1) of the first `rope_fraction` of all channels. A state is (S, θ, k, v).

    Args:
        d_state: number of columns of S.
        expand: ratio of the inner width to d_model.
        head_dim: number of rows of S, which must divide the inner width.
        rope_fraction: the share of the channels of k and q that is rotated.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 128,
        expand: int = 2,
        head_dim: int = 64,
        rope_fraction: float = 0.5,
    ) -> None:
        super().__init__()
        check_sizes(
            {"d_model": d_model, "d_state": d_state, "expand": expand, "head_dim": head_dim}
        )
        self.d_model = d_model
        self.d_state = d_state
        self.inner = expand * d_model
        self.head_dim = head_dim
        inner_width = f"the inner width {self.inner} = expand · d_model"
        self.heads = heads = count_parts("head_dim", head_dim, self.inner, inner_width)
        self.angles = int(d_state * rope_fraction) // 2
        if not (0 < rope_fraction <= 1 and self.angles):
            raise ValueError(
                "`rope_fraction` must be at most 1 and rotate at least two of the "
                f"d_state = {d_state} channels, got {rope_fraction}."
            )
        self.sizes = [self.inner] * 2 + [d_state] * 2 + [heads] * 3 + [self.angles]
        self.W_in = make_linear(d_model, sum(self.sizes), bias=False)
        self.delta_bias = nn.Parameter(draw_delta_bias(heads))
        self.k_norm = nn.RMSNorm(d_state, eps=1e-5)
        self.q_norm = nn.RMSNorm(d_state, eps=1e-5)
        self.k_bias = nn.Parameter(torch.ones(heads, d_state))
        self.q_bias = nn.Parameter(torch.ones(heads, d_state))
        self.D = nn.Parameter(torch.ones(heads))
        self.W_out = make_linear(self.inner, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """Number of scalars in S, θ, k and v."""
        return self.heads * (
            self.head_dim * self.d_state + self.angles + self.d_state + self.head_dim
        )

    def run(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: State | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length; Δ = 0 at padding, which changes nothing."""
        raw = at_each_step(self.W_in, x)
        dtype = state_dtype(raw)
        S, theta, k_last, v_last = self._start(raw) if state is None else state
        if x.shape[1] == 0:
            return gather(x), (S, theta, k_last, v_last)
        z, v, b, c, *scalars = raw.split(self.sizes, -1)
        delta, a, trapezoid, angle = (y.to(dtype) for y in scalars)
        delta = F.softplus(delta + self.delta_bias)
        real = row_mask(raw, lengths)
        delta = delta if real is None else delta * real[..., None]
        turns = math.pi * torch.tanh(angle).unsqueeze(2) * delta.unsqueeze(-1)
        # Angles grow with T, and only their value modulo 2π matters.
        theta = (theta.unsqueeze(1) + turns.double().cumsum(1)).remainder(2 * math.pi).to(dtype)
        k = _rotate(self._with_bias(self.k_norm, b, self.k_bias), theta)
        q = _rotate(self._with_bias(self.q_norm, c, self.q_bias), theta)
        v = v.unflatten(2, (self.heads, self.head_dim)).to(dtype)
        log_decay = -_heavy_tail(a).clamp(min=LEAST_DECAY) * delta
        weight = torch.sigmoid(trapezoid)
        o, S = _trapezoid_scan(q, k, v, weight, delta, log_decay, (S, k_last, v_last))
        y = (o + self.D[:, None] * v).flatten(2) * F.silu(z)
        k_last = _last(k, k_last, lengths)
        v_last = _last(v, v_last, lengths)
        return self.W_out(y.to(raw.dtype)), (S, theta[:, -1], k_last, v_last)

    def _start(self, raw: Tensor) -> State:
        """The initial state, which is zero."""
        zeros = raw.new_zeros((len(raw), self.heads, 1), dtype=state_dtype(raw))
        theta, k, v = (zeros.expand(-1, -1, n) for n in (self.angles, self.d_state, self.head_dim))
        return v.unsqueeze(-1).expand(-1, -1, -1, self.d_state), theta, k, v

    def _with_bias(self, norm: nn.RMSNorm, raw: Tensor, bias: Tensor) -> Tensor:
        """norm(raw) + bias for each head, in the dtype of states."""
        return norm(raw.to(norm.weight.dtype)).unsqueeze(2).to(state_dtype(raw)) + bias


def _heavy_tail(a: Tensor) -> Tensor:
    """1 + a for a ≥ 0, and 1 / (1 − a) for a < 0."""
    return a.relu() + 1 / (1 - a.clamp(max=0))


def _rotate(x: Tensor, theta: Tensor) -> Tensor:
    """The pairs (2i, 2i + 1) of x, rotated by the angles θ_i; further channels stay."""
    turned, rest = x.split([2 * theta.shape[-1], x.shape[-1] - 2 * theta.shape[-1]], -1)
    even, odd = turned.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = theta.cos(), theta.sin()
    pairs = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)
    return torch.cat([pairs.flatten(-2), rest], -1)


def _trapezoid_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    weight: Tensor,
    delta: Tensor,
    log_decay: Tensor,
    state: tuple[Tensor, Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """The outputs S[t] q[t] and the final S.

    Step t + 1 writes the product v[t] k[t]ᵀ of the step before a second time. Here it is written
    with both weights at step t, and the second part is subtracted from the output of step t.
    """
    S, k_last, v_last = state
    second = (1 - weight) * delta
    later = F.pad(second[:, 1:], (0, 0, 0, 1))  # the weight with which step t + 1 writes
    S = S + second[:, 0, :, None, None] * v_last.unsqueeze(-1) * k_last.unsqueeze(-2)
    both = (weight * delta + later).unsqueeze(-1) * v
    o, S = matrix_scan(q, k, both, None, log_decay, S, None)
    return o - (later * (q * k).sum(-1)).unsqueeze(-1) * v, S


def _last(x: Tensor, before: Tensor, lengths: Tensor | None) -> Tensor:
    """The value of x (B, T, heads, c) at the last real step of each row, or `before`."""
    last = last_inputs(x.flatten(2), before.flatten(1).unsqueeze(1), lengths)
    return last.view(before.shape)
