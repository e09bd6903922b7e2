"""Two oracles that share no code with the library: a dense solve, and a loop with autograd.

The dense solve writes all T steps as one linear system in float64,

    (I - L) h = b + (the contribution of h0),

where L holds A[t] one block below the diagonal. The loop is the definition, and autograd
differentiates it.
"""

import torch
from torch import Tensor


def dense_block(A: Tensor, b: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h and the final state of h[t] = A[t] h[t-1] + b[t], with one solve per block."""
    B, T, n, m = b.shape
    if T == 0:
        return b.clone(), h0.clone()
    A, b, h0 = (x.double() for x in (A, b, h0))
    h = torch.empty_like(b)
    for i in range(B):
        for k in range(n):
            system = torch.eye(T * m, dtype=torch.float64)
            for t in range(1, T):
                system[t * m : (t + 1) * m, (t - 1) * m : t * m] = -A[i, t, k]
            right = b[i, :, k].clone()
            right[0] += A[i, 0, k] @ h0[i, k]
            h[i, :, k] = torch.linalg.solve(system, right.reshape(-1)).view(T, m)
    return h, h[:, -1].clone()


def dense_companion(a: Tensor, b: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute h and the last m outputs of h[t] = Σ_i a_i[t] h[t-i] + b[t], channel by channel."""
    (B, T, n), m = b.shape, a.shape[-1]
    a, b, h0 = (x.double() for x in (a, b, h0))
    h, final = torch.empty_like(b), torch.empty_like(h0)
    for i in range(B):
        for k in range(n):
            system, right = torch.eye(T, dtype=torch.float64), b[i, :, k].clone()
            for t in range(T):
                for lag in range(1, m + 1):
                    if t - lag >= 0:
                        system[t, t - lag] -= a[i, t, k, lag - 1]
                    else:
                        right[t] += a[i, t, k, lag - 1] * h0[i, k, lag - t - 1]
            h[i, :, k] = torch.linalg.solve(system, right) if T else right
            final[i, k] = torch.cat([h[i, :, k].flip(0), h0[i, k]])[:m]
    return h, final


def loop_block(A: Tensor, b: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the definition as a loop, in the dtype of the inputs; autograd differentiates it."""
    h, out = h0, []
    for A_t, b_t in zip(A.unbind(1), b.unbind(1), strict=True):
        h = torch.einsum("bnij,bnj->bni", A_t, h) + b_t
        out.append(h)
    return torch.stack(out, 1) if out else torch.zeros_like(b), h


def loop_companion(a: Tensor, b: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the definition as a loop with the newest output first; autograd differentiates it."""
    m = a.shape[-1]
    history, out = list(h0.unbind(-1)), []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h = b_t
        for i in range(m):
            h = h + a_t[..., i] * history[i]
        history = [h, *history][:m]
        out.append(h)
    return torch.stack(out, 1) if out else torch.zeros_like(b), torch.stack(history, -1)


def loop_observer(a: Tensor, b: Tensor, s0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute s_i = a_i s_1 + s_{i+1}, plus b at i = 1; return s_1 and the final s."""
    s, out = list(s0.unbind(-1)), []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        above = [*s[1:], torch.zeros_like(s[0])]
        s = [a_t[..., i] * s[0] + above[i] for i in range(len(s))]
        s[0] = s[0] + b_t
        out.append(s[0])
    return torch.stack(out, 1) if out else torch.zeros_like(b), torch.stack(s, -1)


def loop_states(a: Tensor, b: Tensor, h0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the controller form; return the last m outputs at every step."""
    s, out = h0, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        s = torch.cat([((a_t * s).sum(-1) + b_t).unsqueeze(-1), s[..., :-1]], -1)
        out.append(s)
    return torch.stack(out, 1) if out else torch.zeros_like(a), s


def loop_observer_states(a: Tensor, b: Tensor, s0: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the observer form; return its full state at every step."""
    s, out = s0, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        shifted = torch.cat([s[..., 1:], torch.zeros_like(s[..., :1])], -1)
        driven = torch.cat([b_t.unsqueeze(-1), torch.zeros_like(s[..., 1:])], -1)
        s = a_t * s[..., :1] + shifted + driven
        out.append(s)
    return torch.stack(out, 1) if out else torch.zeros_like(a), s
