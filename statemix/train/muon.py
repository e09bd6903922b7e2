"""Muon (Jordan et al., 2024): momentum whose matrices are made orthogonal before they are added to the weights; AdamW for all else.

    M[s] = 0.95 M[s-1] + 0.05 G[s]
    W[s] = (1 − λ r) W[s-1] − r √max(1, rows / columns) · orthogonal(0.95 M[s] + 0.05 G[s])

torch.optim.Muon multiplies in bfloat16, which a CPU without such instructions does tens of times slower, and takes no vectors; this one
works in float32, in the small Gram matrix, and on what FSDP2 shards.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

COEFFICIENTS = (
    3.4445,
    -4.7750,
    2.0315,
)  # of Jordan's quintic, which sends singular values in (0, 1] near one in five iterations
ITERATIONS = 5
MOMENTUM = 0.95


def orthogonal(G: Tensor) -> Tensor:
    """`G` with its singular values sent to about one.

    An iteration is X ← P X with P = a + b A + c A² and A = X X^T.  All P are polynomials of the first A, so they commute, and the iteration
    is done on the smaller of the two Gram matrices, A ← P² A, with the product of all P applied to X once, at the end.
    """
    X = G.to(torch.promote_types(G.dtype, torch.float32))
    X = X.T if G.shape[0] > G.shape[1] else X
    X = X / (X.norm() + 1e-7)
    a, b, c = COEFFICIENTS
    A, one = X @ X.T, torch.eye(len(X), dtype=X.dtype, device=X.device)
    product = one
    for _ in range(ITERATIONS):
        P = a * one + b * A + c * (A @ A)
        A, product = P @ A @ P, P @ product
    X = product @ X
    return (X.T if G.shape[0] > G.shape[1] else X).to(G.dtype)


def decays(name: str, p: nn.Parameter) -> bool:
    """Matrices decay; vectors, and biases of any shape, do not."""
    return p.ndim >= 2 and not name.rpartition(".")[2].startswith(("bias", "h0"))


def is_inner_matrix(name: str, p: nn.Parameter) -> bool:
    """Matrices inside blocks and decoders are Muon's; embedding and head, whose rows are tokens of their own, are AdamW's."""
    return p.ndim == 2 and decays(name, p) and ("blocks." in name or "decoder." in name)


class Muon(torch.optim.AdamW):
    """AdamW, but for groups whose `matrices` is true: these take orthogonal steps, at `scale` times the learning rate of all groups."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        every = self.param_groups
        for group in every:
            if group["matrices"]:
                step_matrices(group, self.state)
        try:
            self.param_groups = [group for group in every if not group["matrices"]]
            super().step()
        finally:
            self.param_groups = every
        return loss


def step_matrices(group: dict[str, Any], state: dict[Tensor, Any]) -> None:
    """One step of the matrices of a group."""
    rate = group["lr"] * group["scale"]
    for W in group["params"]:
        if W.grad is None:
            continue
        own = state[W]
        if "exp_avg" not in own:
            own["exp_avg"] = torch.zeros_like(W)
            own["step"] = torch.zeros((), dtype=torch.float32, device=W.device)
        own["step"] += 1
        moment = own["exp_avg"].lerp_(W.grad, 1 - MOMENTUM)
        update = like(W, orthogonal(whole(W.grad.lerp(moment, MOMENTUM))))
        W.mul_(1 - rate * group["weight_decay"]).add_(
            update, alpha=-rate * max(1.0, W.shape[0] / W.shape[1]) ** 0.5
        )


def whole(x: Tensor) -> Tensor:
    """A matrix put together from the ranks that hold shares of it."""
    return x.full_tensor() if isinstance(x, DTensor) else x


def like(W: Tensor, update: Tensor) -> Tensor:
    """This rank's share of an update that every rank has."""
    return (
        distribute_tensor(update, W.device_mesh, W.placements, src_data_rank=None)
        if isinstance(W, DTensor)
        else update
    )
