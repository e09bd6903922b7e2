"""Next-token loss from features, without the logits of all steps in memory at once.

    loss = mean over scored t of  − log softmax(W x[t])[targets[t]]

A vocabulary of 50,000 makes logits 65 times larger than the features of width 768 that they come from.  So a chunk of steps is taken all
the way, on a CPU while its logits are in the cache: logits, probabilities p, loss, and at once the gradients

    g[t] = p[t] − onehot(targets[t]),    dx[t] = W^T g[t],    dW = sum over t of g[t] x[t]^T

which the backward pass only scales.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

IGNORED = -100  # the target of a step that is not scored
CACHED_LOGITS = 1 << 21  # of a chunk on a CPU: eight megabytes
HELD_LOGITS = 1 << 27  # of a chunk elsewhere
FEWEST_STEPS = 64  # of a chunk: with fewer, matrix products are slow


def next_token_loss(
    x: Float[Tensor, "*batch d"],
    W: Float[Tensor, "V d"],
    targets: Integer[Tensor, "*batch"],
    *,
    chunk: int | None = None,
    reduction: str = "mean",
) -> Float[Tensor, ""]:
    """Cross-entropy of features `x` under the head `W`, a chunk of steps at a time; a target of −100 is not scored.

    Targets are those of the features beside them: shift them first.  With reduction "sum" the caller divides, by the tokens of all
    ranks perhaps.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"Unknown reduction {reduction!r}. Available: mean, sum.")
    if targets.shape != x.shape[:-1]:
        raise ValueError(
            f"`targets` must match `x`, whose shape is {tuple(x.shape)}: expected {tuple(x.shape[:-1])}, got {tuple(targets.shape)}."
        )
    if chunk is not None and chunk < 1:
        raise ValueError(f"`chunk` must be at least 1, got {chunk}.")
    x, targets = x.flatten(0, -2), targets.flatten()
    check_targets(targets, W.shape[0])
    wanted = (
        x.requires_grad and torch.is_grad_enabled(),
        W.requires_grad and torch.is_grad_enabled(),
    )
    total = SumOfLosses.apply(x, W, targets, steps_at_once(W) if chunk is None else chunk, wanted)
    return total / (targets != IGNORED).sum() if reduction == "mean" else total


def check_targets(targets: Tensor, vocab: int) -> None:
    """Targets are tokens or −100; on a GPU, where reading them would wait for it, the kernel itself asserts that."""
    if torch.compiler.is_compiling() or targets.device.type != "cpu" or targets.numel() == 0:
        return
    wrong = targets[((targets < 0) & (targets != IGNORED)) | (targets >= vocab)]
    if wrong.numel():
        raise ValueError(
            f"A target must be in 0 .. {vocab - 1}, the rows of the head, or {IGNORED}, got {int(wrong[0])}."
        )


def steps_at_once(W: Tensor) -> int:
    """Steps whose logits fit into the cache of a CPU, or a fair share of another device's memory."""
    return max(
        FEWEST_STEPS, (CACHED_LOGITS if W.device.type == "cpu" else HELD_LOGITS) // W.shape[0]
    )


class SumOfLosses(torch.autograd.Function):
    """The sum of the losses of steps (N, d), whose gradients are computed with it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, W: Tensor, targets: Tensor, chunk: int, wanted: tuple[bool, bool]
    ) -> Tensor:
        total = x.new_zeros((), dtype=at_least_float32(x.dtype))
        dx = torch.empty_like(x) if wanted[0] else None
        dW = torch.zeros_like(W, dtype=total.dtype) if wanted[1] else None
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            loss, g = loss_and_gradient(F.linear(x[part], W), targets[part], any(wanted))
            total += loss
            if dx is not None:
                dx[part] = g @ W
            if dW is not None:
                add_product(dW, g.T, x[part])
        ctx.save_for_backward(x, W, targets, dx, None if dW is None else dW.to(W.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        x, W, targets, dx, dW = ctx.saved_tensors
        if (
            torch.is_grad_enabled()
        ):  # gradients of gradients are asked for: let torch compute it all again, with all logits
            dtype = at_least_float32(torch.promote_types(x.dtype, W.dtype))
            x, W = (
                x.view_as(x),
                W.view_as(W),
            )  # features may come from W, tied to the embedding: a view keeps the way there out
            total = F.cross_entropy(
                F.linear(x.to(dtype), W.to(dtype)), targets, ignore_index=IGNORED, reduction="sum"
            )
            leaves = [y for y, d in ((x, dx), (W, dW)) if d is not None]
            found = iter(
                torch.autograd.grad(total, leaves, d_total.to(total.dtype), create_graph=True)
            )
            return *(None if d is None else next(found) for d in (dx, dW)), None, None, None
        return *(None if d is None else d * d_total.to(d.dtype) for d in (dx, dW)), None, None, None


def loss_and_gradient(
    logits: Tensor, targets: Tensor, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """The sum of the losses of a chunk, in float32 at least, and its gradient by the logits, in their dtype."""
    ignored = (targets == IGNORED)[:, None]
    chosen = targets[:, None].masked_fill(ignored, 0)
    dtype = at_least_float32(logits.dtype)
    largest = logits.amax(1, keepdim=True).to(dtype)
    p = (logits - largest).exp_()
    total = p.sum(1, keepdim=True)
    loss = (total.log() + largest - logits.gather(1, chosen)).masked_fill(ignored, 0).sum()
    if not with_gradient:
        return loss, logits
    p.div_(total.masked_fill(ignored, math.inf))  # a step that is not scored has no gradient
    return loss, p.scatter_add_(1, chosen, ignored.to(dtype) - 1).to(logits.dtype)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add a b to `total`, without a matrix in between where dtypes allow."""
    if a.dtype == b.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What losses of logits of `dtype` are summed in."""
    return torch.promote_types(dtype, torch.float32)
