"""Inputs of transformers' models in our terms: masks, bounds of packed sequences, targets."""

import torch
from torch import Tensor

from statemix.models.loss import IGNORED

__all__ = ["bounds_of", "read_mask", "shift"]


def read_mask(attention_mask: Tensor | None, x: Tensor) -> Tensor | None:
    """A mask that is True at real steps of x (B, T, d), or None if all steps are real."""
    if attention_mask is None:
        return None
    B, T = x.shape[:2]
    if attention_mask.dim() != 2 or attention_mask.shape[0] != B or attention_mask.shape[1] < T:
        raise ValueError(
            f"`attention_mask` must have one entry per token: expected {(B, T)} or longer, "
            f"got {tuple(attention_mask.shape)}."
        )
    mask = attention_mask[:, attention_mask.shape[1] - T :].bool()
    return None if mask.all() else mask


def bounds_of(position_ids: Tensor | None) -> Tensor | None:
    """Bounds of packed sequences, which start where positions (1, T) are 0; None if only one."""
    if position_ids is None or position_ids.dim() != 2 or position_ids.shape[0] != 1:
        return None
    starts = (position_ids[0] == 0).nonzero().flatten()
    if len(starts) < 2 or starts[0] != 0:
        return None
    return torch.cat([starts, starts.new_tensor([position_ids.shape[1]])])


def shift(labels: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The target of each step: the next label, and IGNORED at the end of a sequence."""
    targets = torch.full_like(labels, IGNORED)
    targets[:, :-1] = labels[:, 1:]
    if cu_seqlens is not None:
        ends = cu_seqlens[1:].long() - 1
        targets[:, ends[ends >= 0]] = IGNORED
    return targets
