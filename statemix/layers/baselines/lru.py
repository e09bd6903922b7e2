"""The diagonal linear recurrent unit of Orvieto et al., and Mamba's selective scan: diagonal recurrences on our block scan."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops import block_scan


def row_mask(x: Tensor, lengths: Tensor | None) -> Tensor | None:
    """True at the real steps of each row."""
    return None if lengths is None else torch.arange(x.shape[1], device=x.device) < lengths[:, None]


@register_mixer("lru")
class LRU(RaggedMixer):
    """h[t] = λ h[t-1] + γ B x[t], y[t] = Re(C h[t]) + D x[t], with complex λ inside the unit circle.

    A complex number is a block of two states and λ a rotation that shrinks: block_scan with m = 2.  States are (B, n, 2).
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
                f"`r_min` and `r_max` must be radii with 0 <= r_min < r_max <= 1, got {r_min} and {r_max}."
            )
        if not 0 <= max_phase < math.inf:
            raise ValueError(f"`max_phase` must be an angle of at least 0, got {max_phase}.")
        self.d_model, self.n = d_model, n
        radius = torch.sqrt(torch.rand(n) * (r_max**2 - r_min**2) + r_min**2).clamp(1e-4, 1 - 1e-4)
        self.log_rate = nn.Parameter(torch.log(-torch.log(radius)))
        self.phase = nn.Parameter(torch.rand(n) * max_phase)
        self.log_scale = nn.Parameter(torch.log(torch.sqrt(1 - radius**2)))
        self.W_in = make_linear(d_model, 2 * n, bias=False)
        self.W_out = make_linear(2 * n, d_model, bias=False)
        self.skip = nn.Parameter(torch.ones(d_model))

    @property
    def state_size(self) -> int:
        """Real and imaginary parts."""
        return 2 * self.n

    def run(self, x: Tensor, state: Tensor | None, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """All rows, each up to its length."""
        radius = torch.exp(-torch.exp(self.log_rate))
        real, imaginary = radius * torch.cos(self.phase), radius * torch.sin(self.phase)
        rotation = torch.stack([real, -imaginary, imaginary, real], -1).view(self.n, 2, 2)
        b = self.W_in(x).unflatten(2, (self.n, 2)) * torch.exp(self.log_scale)[:, None]
        h, state = block_scan(
            rotation.expand(*x.shape[:2], -1, -1, -1), b, state, mask=row_mask(x, lengths)
        )
        return self.W_out(h.flatten(2)) + self.skip * x, state


MambaState = tuple[Tensor, Tensor | None]


@register_mixer("mamba")
class Mamba(RaggedMixer):
    """Mamba's selective state space layer.

        (u, z) = W_in x,    u = silu(conv(u)),    (δ, B, C) = W_x u,    Δ = softplus(W_Δ δ)
        h[t] = exp(Δ A) h[t-1] + Δ B u[t],    y[t] = W_out ((C h[t] + D u[t]) ⊙ silu(z[t]))

    A state is ((B, inner · d_state), the convolution's inputs).

    Args:
        d_state: states of a channel.
        expand: inner width over d_model.
        conv: steps of the short convolution, 0 for none.
        output_gate: multiply by silu(z).
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
        self.d_model, self.d_state, self.inner, self.output_gate = (
            d_model,
            d_state,
            expand * d_model,
            output_gate,
        )
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
        delta = torch.exp(
            torch.rand(self.inner) * (math.log(0.1) - math.log(1e-3)) + math.log(1e-3)
        )
        with torch.no_grad():
            self.W_delta.bias.copy_(
                delta + torch.log(-torch.expm1(-delta))
            )  # softplus of it is delta

    @property
    def state_size(self) -> int:
        """States, and the inputs that the convolution still sees."""
        return self.inner * (self.d_state + (self.conv.size - 1 if self.conv else 0))

    def run(
        self, x: Tensor, state: MambaState | None, lengths: Tensor | None
    ) -> tuple[Tensor, MambaState]:
        """All rows, each up to its length."""
        h0, before = (None, None) if state is None else state
        u, z = self.W_in(x).split(self.inner, -1) if self.output_gate else (self.W_in(x), None)
        if self.conv is not None:
            u, before = self.conv(u, before, lengths)
        delta, B, C = self.W_x(u).split([self.rank, self.d_state, self.d_state], -1)
        delta = F.softplus(self.W_delta(delta))
        decay = torch.exp(delta.unsqueeze(-1) * -torch.exp(self.log_A))
        b = (delta * u).unsqueeze(-1) * B.unsqueeze(2)
        states, channels = (*x.shape[:2], self.inner, self.d_state), self.inner * self.d_state
        h, final = block_scan(
            decay.reshape(*x.shape[:2], channels, 1, 1),
            b.reshape(*x.shape[:2], channels, 1),
            None if h0 is None else h0.unsqueeze(-1),
            mask=row_mask(x, lengths),
        )
        y = (h.view(states) * C.unsqueeze(2)).sum(-1) + self.D * u
        y = y if z is None else y * F.silu(z)
        return self.W_out(y), (final.squeeze(-1), before)
