"""Muon (Jordan et al., 2024): momentum, orthogonalised for each matrix; AdamW for everything else.

    M[s] = 0.95 M[s-1] + 0.05 G[s]
    W[s] = (1 − λ r) W[s-1] − r √max(1, rows / columns) · orthogonal(0.95 M[s] + 0.05 G[s])

torch.optim.Muon multiplies in bfloat16, which is tens of times slower on CPUs without such
instructions, and accepts no vectors. This one computes in float32 on the small Gram matrix, by the
faster of the two libraries in torch, and supports parameters that FSDP2 shards.
"""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.ops.dispatch.linear import product

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

__all__ = ["Muon", "is_sharded", "orthogonal"]

# Jordan's quintic: five iterations bring singular values in (0, 1] close to one.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_MOMENTUM = 0.95


def orthogonal(G: Float[Tensor, "rows columns"]) -> Float[Tensor, "rows columns"]:
    """Move the singular values of `G` close to one.

    An iteration is X ← P X with P = a + b A + c A² and A = X Xᵀ, or X ← X P with A = Xᵀ X if that
    is smaller. All P are polynomials of the first A, so they commute: the iteration runs on the
    Gram matrix, A ← P² A, and the product of all P is applied to X once, at the end.
    """
    X = G.to(torch.promote_types(G.dtype, torch.float32))
    X = X / (X.norm() + 1e-7)
    is_tall = G.shape[0] > G.shape[1]
    a, b, c = _COEFFICIENTS
    A = product(X.T, X) if is_tall else product(X, X.T)
    every = None  # the product of all P
    for iteration in range(_ITERATIONS):
        P = b * A + c * product(A, A)
        P.diagonal().add_(a)
        every = P if every is None else product(P, every)
        if iteration < _ITERATIONS - 1:
            A = product(product(P, A), P)
    assert every is not None
    return (product(X, every.T) if is_tall else product(every, X)).to(G.dtype)


class Muon(torch.optim.AdamW):
    """AdamW, except for groups with `matrices=True`.

    These take orthogonalised steps at `scale` times the learning rate.
    """

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        every = self.param_groups
        for group in every:
            if group["matrices"]:
                _step_matrices(group, self.state)
        try:
            self.param_groups = [group for group in every if not group["matrices"]]
            super().step()
        finally:
            self.param_groups = every
        return loss


def _step_matrices(group: dict[str, Any], state: dict[Tensor, Any]) -> None:
    rate = group["lr"] * group["scale"]
    for W in group["params"]:
        if W.grad is None:
            continue
        own = state[W]
        if "exp_avg" not in own:
            own["exp_avg"] = torch.zeros_like(W)
            own["step"] = torch.zeros((), dtype=torch.float32, device=W.device)
        own["step"] += 1
        moment = own["exp_avg"].lerp_(W.grad, 1 - _MOMENTUM)
        update = _shard_like(W, orthogonal(_gather(W.grad.lerp(moment, _MOMENTUM))))
        W.mul_(1 - rate * group["weight_decay"]).add_(
            update, alpha=-rate * max(1.0, W.shape[0] / W.shape[1]) ** 0.5
        )


def _gather(x: Tensor) -> Tensor:
    """Gather the full matrix from the ranks that hold its shards."""
    return x.full_tensor() if is_sharded(x) else x


def is_sharded(x: Tensor) -> "TypeGuard[DTensor]":
    """True for a DTensor, whose module takes half a second to import: without it there are none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def _shard_like(W: Tensor, update: Tensor) -> Tensor:
    """Select this rank's shard of an update that every rank holds in full."""
    if not is_sharded(W):
        return update
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(update, W.device_mesh, W.placements, src_data_rank=None)
