"""Diagonal recurrences computed by `block_scan`: the LRU of Orvieto et al. and Mamba."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops import block_scan

__all__ = ["LRU", "Mamba", "draw_delta_bias", "row_mask"]


def row_mask(
    x: Float[Tensor, "B T d"], lengths: Integer[Tensor, " B"] | None
) -> Bool[Tensor, "B T"] | None:
    """Make a mask that is True at the real steps of each row, or None if there is no padding."""
    return None if lengths is None else torch.arange(x.shape[1], device=x.device) < lengths[:, None]


def draw_delta_bias(size: int) -> Float[Tensor, " size"]:
    """Draw biases whose softplus, the time step Δ, is log-uniform between 0.001 and 0.1."""
    delta = torch.exp(torch.rand(size) * (math.log(0.1) - math.log(1e-3)) + math.log(1e-3))
    return delta + torch.log(-torch.expm1(-delta))


@register_mixer("lru")
class LRU(RaggedMixer):
    """The linear recurrent unit, with complex λ inside the unit circle.

        h[t] = λ h[t-1] + γ B x[t],    y[t] = Re(C h[t]) + D x[t]

    Each complex number is a block of m = 2 real states, and λ is a rotation with a decay, so
    `block_scan` computes the recurrence. States are (B, n, 2).
    """

    def __init__(
        self,
        d_model: int,
        n: int,
        r_min: float = 0.0,
        r_max: float = 1.0,
        max_phase: float = 2 * math.pi,
    ) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "n": n})
        if not 0 <= r_min < r_max <= 1:
            raise ValueError(
                "`r_min` and `r_max` must satisfy 0 <= r_min < r_max <= 1, "
                f"got {r_min} and {r_max}."
            )
        if not 0 <= max_phase < math.inf:
            raise ValueError(f"`max_phase` must be an angle of at least 0, got {max_phase}.")
        self.d_model = d_model
        self.n = n
        radius = torch.sqrt(torch.rand(n) * (r_max**2 - r_min**2) + r_min**2).clamp(1e-4, 1 - 1e-4)
        self.log_rate = nn.Parameter(torch.log(-torch.log(radius)))
        self.phase = nn.Parameter(torch.rand(n) * max_phase)
        self.log_scale = nn.Parameter(torch.log(torch.sqrt(1 - radius**2)))
        self.W_in = make_linear(d_model, 2 * n, bias=False)
        self.W_out = make_linear(2 * n, d_model, bias=False)
        self.skip = nn.Parameter(torch.ones(d_model))

    @property
    def state_size(self) -> int:
        """Number of real and imaginary parts."""
        return 2 * self.n

    def run(
        self,
        x: Float[Tensor, "B T d"],
        state: Float[Tensor, "B n 2"] | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], Float[Tensor, "B n 2"]]:
        """Run all rows, each up to its length."""
        radius = torch.exp(-torch.exp(self.log_rate))
        real = radius * torch.cos(self.phase)
        imaginary = radius * torch.sin(self.phase)
        rotation = torch.stack([real, -imaginary, imaginary, real], -1).view(self.n, 2, 2)
        b = self.W_in(x).unflatten(2, (self.n, 2)) * torch.exp(self.log_scale)[:, None]
        h, state = block_scan(
            rotation.expand(*x.shape[:2], -1, -1, -1), b, state, mask=row_mask(x, lengths)
        )
        return self.W_out(h.flatten(2)) + self.skip * x, state


MambaState = tuple[Float[Tensor, "B s"], Float[Tensor, "B k c"] | None]


@register_mixer("mamba")
class Mamba(RaggedMixer):
    """Mamba's selective state space layer.

        (u, z) = W_in x,    u = silu(conv(u)),    (δ, B, C) = W_x u,    Δ = softplus(W_Δ δ)
        h[t] = exp(Δ A) h[t-1] + Δ B u[t],    y[t] = W_out ((C h[t] + D u[t]) ⊙ silu(z[t]))

    A state is ((B, inner · d_state), the convolution's inputs).

    Args:
        d_state: states per channel.
        expand: ratio of the inner width to d_model.
        conv: steps of the short convolution (0: none).
        output_gate: multiply the output by silu(z).
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        expand: int = 2,
        conv: int = 4,
        output_gate: bool = True,
    ) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "d_state": d_state, "expand": expand})
        self.d_model = d_model
        self.d_state = d_state
        self.inner = expand * d_model
        self.output_gate = output_gate
        self.rank = -(-d_model // 16)
        self.W_in = make_linear(d_model, self.inner * (1 + output_gate), bias=False)
        self.conv = make_short_conv(self.inner, conv)
        self.W_x = make_linear(self.inner, self.rank + 2 * d_state, bias=False)
        self.W_delta = make_linear(self.rank, self.inner)
        self.log_A = nn.Parameter(
            torch.log(torch.arange(1.0, d_state + 1)).expand(self.inner, d_state).clone()
        )
        self.D = nn.Parameter(torch.ones(self.inner))
        self.W_out = make_linear(self.inner, d_model, bias=False)
        with torch.no_grad():
            self.W_delta.bias.copy_(draw_delta_bias(self.inner))

    @property
    def state_size(self) -> int:
        """Number of scalars in h and in the inputs of the convolution."""
        return self.inner * (self.d_state + (self.conv.size - 1 if self.conv else 0))

    def run(
        self,
        x: Float[Tensor, "B T d"],
        state: MambaState | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], MambaState]:
        """Run all rows, each up to its length."""
        h0, before = (None, None) if state is None else state
        u, z = self.W_in(x).split(self.inner, -1) if self.output_gate else (self.W_in(x), None)
        if self.conv is not None:
            u, before = self.conv(u, before, lengths)
        delta, B, C = self.W_x(u).split([self.rank, self.d_state, self.d_state], -1)
        delta = F.softplus(self.W_delta(delta))
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.log_A))
        b = (delta * u).unsqueeze(-1) * B.unsqueeze(2)
        h, final = block_scan(
            decay.flatten(2)[..., None, None],
            b.flatten(2)[..., None],
            None if h0 is None else h0.unsqueeze(-1),
            mask=row_mask(x, lengths),
        )
        y = (h.view(b.shape) * C.unsqueeze(2)).sum(-1) + self.D * u
        y = y if z is None else y * F.silu(z)
        return self.W_out(y), (final.squeeze(-1), before)
