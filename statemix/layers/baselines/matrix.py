"""Matrix-valued states: the gated delta rule, in chunks of time.

    S[t] = α[t] S[t-1] (I − β[t] k[t] k[t]ᵀ) + β[t] v[t] k[t]ᵀ,    o[t] = S[t] q[t]

With u[t] = β[t] (v[t] − α[t] S[t-1] k[t]) this is S[t] = α[t] S[t-1] + u[t] k[t]ᵀ, and inside a chunk that begins with S_0, g the running
product of α,

    u[t] + β[t] Σ_{i<t} (g[t] / g[i]) (k[t] · k[i]) u[i] = β[t] (v[t] − g[t] S_0 k[t]),

one triangular system for all of its steps.  Without the delta rule (Mamba-2's recurrence) u is given, and nothing is solved.
"""

import torch
from torch import Tensor

from statemix.ops.precision import output_dtype, state_dtype, without_autocast

CHUNK = 32


def matrix_scan(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_decay: Tensor,
    S: Tensor | None,
    real: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Outputs (B, T, heads, d_v) and the last S (B, heads, d_v, d_k), linear in T; states and sums are float32 at least.

    Args:
        q: (B, T, heads, d_k), as is k; v is (B, T, heads, d_v).
        beta: (B, T, heads), or None where u = v is given.
        log_decay: log α (B, T, heads).
        real: (B, T), False where a step must leave S alone.
    """
    B, T, heads, d_v = v.shape
    given, dtype = output_dtype(q, k, v), state_dtype(q, k, v)
    q, k, v, log_decay = (x.to(dtype) for x in (q, k, v, log_decay))
    beta = None if beta is None else beta.to(dtype)
    expected = (B, heads, d_v, k.shape[-1])
    if S is not None and tuple(S.shape) != expected:
        raise ValueError(
            f"The state of a batch of {B} must have the shape {expected}, got {tuple(S.shape)}."
        )
    S = v.new_zeros(expected) if S is None else S.to(dtype)
    if real is not None:
        keep = real[..., None]
        log_decay = torch.where(keep, log_decay, torch.zeros_like(log_decay))
        beta = None if beta is None else torch.where(keep, beta, torch.zeros_like(beta))
        v = torch.where(keep[..., None], v, torch.zeros_like(v))
    outputs = []
    with without_autocast(v.device):
        for a in range(0, T, CHUNK):
            part = slice(a, a + CHUNK)
            q_, k_, v_, decay = (x[:, part].transpose(1, 2) for x in (q, k, v, log_decay))
            o, S = matrix_chunk(
                q_, k_, v_, None if beta is None else beta[:, part].transpose(1, 2), decay, S
            )
            outputs.append(o.transpose(1, 2))
    return (torch.cat(outputs, 1) if outputs else torch.zeros_like(v)).to(given), S


def matrix_chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor | None, log_decay: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """One chunk, heads before time: outputs (B, heads, L, d_v) and the next S."""
    L = q.shape[2]
    g = log_decay.cumsum(-1)
    lower = torch.ones(L, L, dtype=torch.bool, device=q.device).tril()
    # exp of differences that are at most zero; what lies above the diagonal would overflow, and is never used
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
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor | None,
    log_decay: Tensor,
    S: Tensor | None,
    real: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The definition, step by step: what `matrix_scan` is tested against."""
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
