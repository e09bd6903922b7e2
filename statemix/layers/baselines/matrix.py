"""Matrix-valued states: the gated delta rule, computed in chunks along the time axis.

    S[t] = α[t] S[t-1] (I − β[t] k[t] k[t]ᵀ) + β[t] v[t] k[t]ᵀ,    o[t] = S[t] q[t]

With u[t] = β[t] (v[t] − α[t] S[t-1] k[t]) this is S[t] = α[t] S[t-1] + u[t] k[t]ᵀ. In a chunk with
the initial state S_0, where g is the running product of α,

    u[t] + β[t] Σ_{i<t} (g[t] / g[i]) (k[t] · k[i]) u[i] = β[t] (v[t] − g[t] S_0 k[t]),

which is one triangular system for all steps of the chunk. Without the delta rule (Mamba-2), u = v
and there is no system to solve.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from statemix.ops.precision import output_dtype, state_dtype, without_autocast

__all__ = ["matrix_loop", "matrix_scan"]

CHUNK = 32  # steps per chunk
Keys = Float[Tensor, "B T heads d_k"]
Values = Float[Tensor, "B T heads d_v"]
Scalars = Float[Tensor, "B T heads"]
MatrixState = Float[Tensor, "B heads d_v d_k"]


def matrix_scan(
    q: Keys,
    k: Keys,
    v: Values,
    beta: Scalars | None,
    log_decay: Scalars,
    S: MatrixState | None,
    real: Bool[Tensor, "B T"] | None,
) -> tuple[Values, MatrixState]:
    """Compute the outputs o and the final S in time linear in T, with states in at least float32.

    Args:
        beta: the step sizes β, or None for the recurrence without the delta rule, u = v.
        log_decay: log α.
        real: False at steps that must not change S.
    """
    B, T, heads, d_v = v.shape
    given = output_dtype(q, k, v)
    dtype = state_dtype(q, k, v)
    q, k, v, log_decay = (x.to(dtype) for x in (q, k, v, log_decay))
    beta = None if beta is None else beta.to(dtype)
    expected = (B, heads, d_v, k.shape[-1])
    if S is not None and tuple(S.shape) != expected:
        raise ValueError(
            f"The state must have the shape {expected} for a batch of {B}, got {tuple(S.shape)}."
        )
    S = v.new_zeros(expected) if S is None else S.to(dtype)
    if T == 0:
        return v.to(given), S
    if real is not None:
        keep = real[..., None]
        log_decay = torch.where(keep, log_decay, torch.zeros_like(log_decay))
        beta = None if beta is None else torch.where(keep, beta, torch.zeros_like(beta))
        v = torch.where(keep[..., None], v, torch.zeros_like(v))
    outputs = []
    with without_autocast(v.device):
        # The gradient of a split is one concatenation; that of a slice has the length of the whole.
        inputs = [x.split(CHUNK, 1) for x in (q, k, v, log_decay)]
        betas = [None] * len(inputs[0]) if beta is None else beta.split(CHUNK, 1)
        for beta_, *part in zip(betas, *inputs, strict=True):
            q_, k_, v_, decay = (x.transpose(1, 2) for x in part)
            step_sizes = None if beta_ is None else beta_.transpose(1, 2)
            o, S = _matrix_chunk(q_, k_, v_, step_sizes, decay, S)
            outputs.append(o.transpose(1, 2))
    return torch.cat(outputs, 1).to(given), S


def _matrix_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_decay: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the outputs (B, heads, L, d_v) of one chunk and the next S; time is on axis 2."""
    L = q.shape[2]
    g = log_decay.cumsum(-1)
    lower = torch.ones(L, L, dtype=torch.bool, device=q.device).tril()
    # Differences on and below the diagonal are at most zero; those above could overflow.
    ratio = torch.exp((g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(~lower, -torch.inf))
    if beta is None:
        u = v
    else:
        system = beta.unsqueeze(-1) * ratio * (k @ k.mT)
        rhs = beta.unsqueeze(-1) * (v - g.exp().unsqueeze(-1) * (k @ S.mT))
        u = torch.linalg.solve_triangular(system.tril(-1), rhs, upper=False, unitriangular=True)
    o = g.exp().unsqueeze(-1) * (q @ S.mT) + (ratio * (q @ k.mT)) @ u
    S = g[..., -1].exp()[..., None, None] * S + (ratio[..., -1, :].unsqueeze(-1) * u).mT @ k
    return o, S


def matrix_loop(
    q: Keys,
    k: Keys,
    v: Values,
    beta: Scalars | None,
    log_decay: Scalars,
    S: MatrixState | None,
    real: Bool[Tensor, "B T"] | None = None,
) -> tuple[Values, MatrixState]:
    """Compute the definition step by step; `matrix_scan` is tested against it."""
    B, T, heads, d_v = v.shape
    S = v.new_zeros((B, heads, d_v, k.shape[-1])) if S is None else S
    outputs = []
    for t in range(T):
        decayed = log_decay[:, t].exp()[..., None, None] * S
        u = v[:, t]
        if beta is not None:
            u = beta[:, t].unsqueeze(-1) * (v[:, t] - (decayed @ k[:, t].unsqueeze(-1)).squeeze(-1))
        moved = decayed + u.unsqueeze(-1) * k[:, t].unsqueeze(-2)
        S = moved if real is None else torch.where(real[:, t, None, None, None], moved, S)
        outputs.append((S @ q[:, t].unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 1), S
