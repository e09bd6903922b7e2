"""Next-token loss from features, without the logits of all steps in memory at once.

    loss = mean over scored t of  − log softmax(W x[t])[targets[t]]

A vocabulary of 50,000 makes logits 65 times larger than the features of width 768 that they come from.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor
from torch.utils.checkpoint import checkpoint

IGNORED = -100  # the target of a step that is not scored
CHUNK = 1024  # steps whose logits are held at once


def next_token_loss(
    x: Float[Tensor, "*batch d"],
    W: Float[Tensor, "V d"],
    targets: Integer[Tensor, "*batch"],
    *,
    chunk: int = CHUNK,
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
    x, targets = x.flatten(0, -2), targets.flatten()
    total = x.new_zeros((), dtype=torch.float32)
    for x_part, part in zip(x.split(chunk), targets.split(chunk), strict=True):
        total = total + checkpoint(sum_of_losses, x_part, W, part, use_reentrant=False)
    return total / (targets != IGNORED).sum() if reduction == "mean" else total


def sum_of_losses(x: Tensor, W: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of one chunk, in float32 at least."""
    logits = F.linear(x, W)
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, targets, ignore_index=IGNORED, reduction="sum")
