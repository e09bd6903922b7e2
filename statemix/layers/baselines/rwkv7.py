"""RWKV-7: a generalised delta rule with a decay per channel, computed in chunks.

    S[t] = S[t-1] (diag(w[t]) + a[t] b[t]ᵀ) + v[t] k[t]ᵀ,    o[t] = S[t] r[t]

In a chunk, let W[t] be the running product of w, and S[t] = Z[t] diag(W[t]). With

    ã[t] = W[t-1] ⊙ a[t],    b̃[t] = b[t] / W[t],    k̃[t] = k[t] / W[t],    u[t] = Z[t-1] ã[t]

this is Z[t] = Z[t-1] + u[t] b̃[t]ᵀ + v[t] k̃[t]ᵀ, and so

    u[t] − Σ_{i<t} (b̃[i] · ã[t]) u[i] = Z[0] ã[t] + Σ_{i<t} (k̃[i] · ã[t]) v[i],

one triangular system for all steps of the chunk. RWKV-7 has w > 0.54, so W stays above 5e-5 in a
chunk of sixteen steps, and the divisions are harmless.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.heads import count_parts
from statemix.layers.baselines.lru import row_mask
from statemix.layers.baselines.ragged import RaggedMixer, last_inputs
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops.precision import output_dtype, state_dtype, without_autocast

__all__ = ["RWKV7", "diagonal_plus_rank_one_scan"]

CHUNK = 16
EPS = 64e-5
Vectors = Float[Tensor, "B T heads d"]
State = tuple[Float[Tensor, "B heads d d"], Float[Tensor, "B 1 c"]]


@register_mixer("rwkv7")
class RWKV7(RaggedMixer):
    """RWKV-7's time mixing, as in the first layer of its models.

        x_i = x[t] + μ_i ⊙ (x[t-1] − x[t])    for i = r, w, k, v, a, g
        w = exp(−e^(−1/2) σ(w0 + tanh(x_w A_w) B_w)),    a = σ(a0 + x_a A_a B_a)
        r, k, v = W x_r, W x_k, W x_v,    g = σ(x_g A_g) B_g
        κ = k ⊙ k_k,  |κ| = 1 per head,    k ← k ⊙ (1 + (a − 1) k_a)
        S[t] = S[t-1] (diag(w) − κ (a ⊙ κ)ᵀ) + v kᵀ
        y[t] = W_o ((norm(S[t] r) + (Σ r ⊙ k ⊙ r_k) v) ⊙ g)

    The norm is over each head. Later layers of RWKV-7 also mix v with that of the first layer,
    which this layer does not see. A state is (S, the last x).

    Args:
        head_dim: number of rows and columns of each head's S, which must divide d_model.
    """

    def __init__(self, d_model: int, head_dim: int = 64) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "head_dim": head_dim})
        self.d_model = d_model
        self.head_dim = head_dim
        width = f"the width d_model = {d_model}"
        self.heads = count_parts("head_dim", head_dim, d_model, width)
        channel = torch.arange(d_model)
        i = channel / d_model
        p = channel / max(1, d_model - 1)
        within = (channel % head_dim) / max(1, head_dim - 1) * 2 - 1
        zigzag = within * within.abs()
        self.mu = nn.Parameter(torch.stack([1 - i**e for e in (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)]))
        self.w0 = nn.Parameter(-5.5 + 6 * p**2 + 2.5 * zigzag)
        self.a0 = nn.Parameter(-0.19 + 0.3 * zigzag + 0.4 * (p - 0.5))
        self.k_k = nn.Parameter(0.71 - 0.1 * (p - 0.5))
        self.k_a = nn.Parameter(torch.full((d_model,), 1.02))
        self.r_k = nn.Parameter(torch.full((self.heads, head_dim), -0.04))
        self.w_low = LowRank(d_model, 2.5)
        self.a_low = LowRank(d_model, 2.5)
        self.g_low = LowRank(d_model, 5.0)
        self.W_r, self.W_k, self.W_v, self.W_o = (
            make_linear(d_model, d_model, bias=False) for _ in range(4)
        )
        for linear, bound in ((self.W_r, 0.5), (self.W_k, 0.05), (self.W_v, 0.5)):
            nn.init.uniform_(linear.weight, -bound * d_model**-0.5, bound * d_model**-0.5)
        nn.init.zeros_(self.W_o.weight)
        self.norm = nn.GroupNorm(self.heads, d_model, eps=EPS)

    @property
    def state_size(self) -> int:
        """Number of scalars in S and in the last x."""
        return self.d_model * (self.head_dim + 1)

    def run(
        self,
        x: Float[Tensor, "B T d"],
        state: State | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length."""
        if state is None:
            before = x.new_zeros((len(x), 1, self.d_model))
            size = (len(x), self.heads, self.head_dim, self.head_dim)
            state = (x.new_zeros(size, dtype=state_dtype(x)), before)
        S, before = state
        if x.shape[1] == 0:
            return x, (S, before)
        previous = torch.cat([before, x[:, :-1]], 1)
        x_r, x_w, x_k, x_v, x_a, x_g = (x + mu * (previous - x) for mu in self.mu)
        log_w = -math.exp(-0.5) * torch.sigmoid(self.w0 + self.w_low(x_w, torch.tanh))
        a = torch.sigmoid(self.a0 + self.a_low(x_a))
        g = self.g_low(x_g, torch.sigmoid)
        k = self.W_k(x_k)
        kappa = F.normalize(self._heads(k * self.k_k), dim=-1)
        k = k * (1 + (a - 1) * self.k_a)
        r, k, v, a, log_w = map(self._heads, (self.W_r(x_r), k, self.W_v(x_v), a, log_w))
        real = row_mask(x, lengths)
        o, S = diagonal_plus_rank_one_scan(r, k, v, -kappa, a * kappa, log_w, S, real)
        y = self._normalise(o) + ((r * k * self.r_k).sum(-1, keepdim=True) * v).flatten(2)
        return self.W_o(y.to(g.dtype) * g), (S, last_inputs(x, before, lengths))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, self.head_dim))

    def _normalise(self, o: Tensor) -> Tensor:
        """The outputs (B, T, heads, head_dim), normalised in each head, as (B, T, d)."""
        flat = o.flatten(2).flatten(0, 1).to(self.norm.weight.dtype)
        return self.norm(flat).unflatten(0, o.shape[:2])


class LowRank(nn.Module):
    """f(x A) B with A zero and B orthogonal at the start, so that its output starts at zero.

    The rank is near `factor` · √d / 2, a multiple of 32.
    """

    def __init__(self, d: int, factor: float) -> None:
        super().__init__()
        rank = max(32, 32 * round(factor * d**0.5 / 32))
        self.A = nn.Parameter(torch.zeros(d, rank))
        self.B = nn.Parameter(nn.init.orthogonal_(torch.empty(rank, d), gain=0.1))

    def forward(self, x: Tensor, f: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        inner = x @ self.A
        return (inner if f is None else f(inner)) @ self.B


def diagonal_plus_rank_one_scan(
    r: Vectors,
    k: Vectors,
    v: Vectors,
    a: Vectors,
    b: Vectors,
    log_w: Vectors,
    S: Float[Tensor, "B heads d d"],
    real: Bool[Tensor, "B T"] | None,
) -> tuple[Vectors, Float[Tensor, "B heads d d"]]:
    """Compute the outputs o and the final S in time linear in T, with states in at least float32.

    Args:
        log_w: log w, at least −0.7.
        real: False at steps that must not change S.
    """
    given = output_dtype(r, k, v)
    dtype = state_dtype(r, k, v)
    inputs = [x.to(dtype) for x in (r, k, v, a, b, log_w)]
    if real is not None:
        keep = real[..., None, None]
        inputs[1:] = [torch.where(keep, x, torch.zeros_like(x)) for x in inputs[1:]]
    outputs = []
    S = S.to(dtype)
    with without_autocast(v.device):
        # The gradient of a split is one concatenation; that of a slice has the length of the whole.
        for part in zip(*(x.split(CHUNK, 1) for x in inputs), strict=True):
            o, S = _chunk([x.transpose(1, 2) for x in part], S)
            outputs.append(o.transpose(1, 2))
    return torch.cat(outputs, 1).to(given), S


def _chunk(inputs: list[Tensor], S: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the outputs (B, heads, L, d) of one chunk and the next S; time is on axis 2."""
    r, k, v, a, b, log_w = inputs
    total = log_w.cumsum(2)
    W = total.exp()
    a = a * (total - log_w).exp()
    r, b, k = r * W, b / W, k / W
    rhs = a @ S.mT + (a @ k.mT).tril(-1) @ v
    system = -(a @ b.mT).tril(-1)
    u = torch.linalg.solve_triangular(system, rhs, upper=False, unitriangular=True)
    o = r @ S.mT + (r @ b.mT).tril() @ u + (r @ k.mT).tril() @ v
    return o, (S + u.mT @ b + v.mT @ k) * W[:, :, -1:]
