"""Next-token loss from features, computed in chunks so that not all logits are in memory at once.

    loss = mean over scored t of  − log softmax(W x[t])[targets[t]]

With a vocabulary of 50,000, logits are 65 times larger than features of width 768. The forward
pass therefore computes everything for one chunk of steps at a time (on a CPU, while the logits of
the chunk are in the cache): logits, probabilities p, loss, and the gradients

    g[t] = p[t] − onehot(targets[t]),    dx[t] = W^T g[t],    dW = sum over t of g[t] x[t]^T

The backward pass only scales these.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor

from statemix.ops.dispatch.dense import softmax_minus_onehot
from statemix.ops.dispatch.linear import add_product, product
from statemix.ops.precision import cast_under_autocast

__all__ = ["IGNORED", "next_token_loss"]

IGNORED = -100  # the target of a step that is not scored
CACHED_LOGITS = 1 << 21  # logits per chunk on a CPU: eight megabytes
HELD_LOGITS = 1 << 27  # logits per chunk on other devices
FEWEST_STEPS = 64  # minimum steps per chunk; with fewer, matrix products are slow


def next_token_loss(
    x: Float[Tensor, "*batch d"],
    W: Float[Tensor, "V d"],
    targets: Integer[Tensor, "*batch"],
    *,
    chunk: int | None = None,
    reduction: str = "mean",
) -> Float[Tensor, ""]:
    """Compute the cross-entropy of the logits W x in chunks; steps with target −100 are not scored.

    `targets[t]` is the token that `x[t]` predicts, so shift the tokens first. Use the reduction
    "sum" to divide by another count, for example by the number of tokens on all ranks.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(f"Unknown reduction {reduction!r}. Available: mean, sum.")
    if targets.shape != x.shape[:-1]:
        raise ValueError(
            f"`targets` must match `x`, whose shape is {tuple(x.shape)}: "
            f"expected {tuple(x.shape[:-1])}, got {tuple(targets.shape)}."
        )
    if chunk is not None and chunk < 1:
        raise ValueError(f"`chunk` must be at least 1, got {chunk}.")
    x = x.flatten(0, -2)
    targets = targets.flatten()
    check_targets(targets, W.shape[0])
    training = torch.is_grad_enabled()
    wanted = (training and x.requires_grad, training and W.requires_grad)
    total = SumOfLosses.apply(x, W, targets, steps_at_once(W) if chunk is None else chunk, wanted)
    return total / (targets != IGNORED).sum() if reduction == "mean" else total


def check_targets(targets: Tensor, vocab: int) -> None:
    """Raise an error if a target is neither a token nor −100.

    On a GPU this would force a synchronisation, and the kernel asserts it instead.
    """
    if torch.compiler.is_compiling() or targets.device.type != "cpu" or targets.numel() == 0:
        return
    wrong = targets[((targets < 0) & (targets != IGNORED)) | (targets >= vocab)]
    if wrong.numel():
        raise ValueError(
            f"A target must be in 0 .. {vocab - 1}, the rows of the head, or {IGNORED}, "
            f"got {int(wrong[0])}. "
            "Use the tokenizer that the model was trained with."
        )


def steps_at_once(W: Tensor) -> int:
    """Choose a chunk size so that the logits fit into a CPU's cache, or into a GPU's memory."""
    logits = CACHED_LOGITS if W.device.type == "cpu" else HELD_LOGITS
    return max(FEWEST_STEPS, logits // W.shape[0])


class SumOfLosses(torch.autograd.Function):
    """The sum of the losses of N steps (N, d); the forward pass also computes the gradients."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, W: Tensor, targets: Tensor, chunk: int, wanted: tuple[bool, bool]
    ) -> Tensor:
        total = x.new_zeros((), dtype=at_least_float32(x.dtype))
        dx = torch.empty_like(x) if wanted[0] else None
        # Transposed, because products that are wider than high are faster on a CPU.
        dW_t = W.new_zeros(W.shape[::-1], dtype=total.dtype) if wanted[1] else None
        x_low, W_low = cast_under_autocast(x, W)
        for start in range(0, len(x), chunk):
            part = slice(start, start + chunk)
            logits = product(x_low[part], W_low.t())
            loss, g = loss_and_gradient(logits, targets[part], any(wanted))
            total += loss
            if dx is not None:
                dx[part] = product(g, W_low)
            if dW_t is not None:
                add_product(dW_t, x_low[part].t(), g)
        dW = None if dW_t is None else dW_t.t().to(W.dtype).contiguous()
        ctx.save_for_backward(x, W, targets, dx, dW)
        return total

    @staticmethod
    def backward(ctx: Any, d_total: Tensor) -> tuple[Tensor | None, ...]:
        x, W, targets, dx, dW = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: recompute with all logits in plain torch
            dtype = at_least_float32(torch.promote_types(x.dtype, W.dtype))
            # With tied embeddings x depends on W; views keep that path out of these gradients.
            x = x.view_as(x)
            W = W.view_as(W)
            logits = F.linear(x.to(dtype), W.to(dtype))
            total = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
            leaves = [y for y, d in ((x, dx), (W, dW)) if d is not None]
            scale = d_total.to(total.dtype)
            found = iter(torch.autograd.grad(total, leaves, scale, create_graph=True))
            return *(None if d is None else next(found) for d in (dx, dW)), None, None, None
        return *(None if d is None else d * d_total.to(d.dtype) for d in (dx, dW)), None, None, None


def loss_and_gradient(
    logits: Tensor, targets: Tensor, with_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Sum the losses of a chunk in at least float32; return it with its gradient for the logits."""
    computed = softmax_minus_onehot(logits, targets, IGNORED, gradient=with_gradient)
    if computed is not None:
        return logits.new_tensor(computed, dtype=at_least_float32(logits.dtype)), logits
    ignored = (targets == IGNORED)[:, None]
    chosen = targets[:, None].masked_fill(ignored, 0)
    dtype = at_least_float32(logits.dtype)
    largest = logits.amax(1, keepdim=True).to(dtype)
    p = (logits - largest).exp_()
    total = p.sum(1, keepdim=True)
    loss = (total.log() + largest - logits.gather(1, chosen)).masked_fill(ignored, 0).sum()
    if not with_gradient:
        return loss, logits
    p.div_(total.masked_fill(ignored, math.inf))  # steps that are not scored get a zero gradient
    return loss, p.scatter_add_(1, chosen, ignored.to(dtype) - 1).to(logits.dtype)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which losses are summed, at least float32."""
    return torch.promote_types(dtype, torch.float32)
