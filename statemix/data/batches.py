"""Batches: the windows of step s depend only on the seed and on s.

A split is cut into windows of T + 1 tokens that overlap by one: the last target of a window is the
first input of the next. Each epoch has a different random order of the windows, and step s of a
run reads the s-th batch in that order. The ranks divide the batch among them. A run can therefore
resume with another number of ranks, and its position in the data is the step.

A window may contain several documents. They are then packed: `cu_seqlens` holds the start of each,
and no state crosses from one document to the next.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from statemix.data.tokens import Piece

__all__ = ["Batch", "collate", "epoch_order", "windows_of_step"]


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T), or packed (1, sum of lengths) with the bounds `cu_seqlens`."""

    tokens: Tensor
    targets: Tensor
    cu_seqlens: Tensor | None

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.tokens.to(device),
            self.targets.to(device),
            None if self.cu_seqlens is None else self.cu_seqlens.to(device),
        )


def collate(pieces: list[Piece], *, reset: bool = True) -> Batch:
    """Make a batch of pieces, packed if lengths differ or if documents start inside a piece.

    Args:
        reset: start every document with a fresh state; otherwise the state carries over from one
            document of a piece to the next.
    """
    lengths = [len(piece.tokens) - 1 for piece in pieces]
    same_length = len(set(lengths)) == 1
    join = np.stack if same_length else np.concatenate
    tokens = torch.from_numpy(join([piece.tokens[:-1].astype(np.int64) for piece in pieces]))
    targets = torch.from_numpy(join([piece.tokens[1:].astype(np.int64) for piece in pieces]))
    if same_length and not (reset and any(len(piece.starts) for piece in pieces)):
        return Batch(tokens, targets, None)
    bounds = [0]
    for piece, length in zip(pieces, lengths, strict=True):
        begin = bounds[-1]
        bounds += [begin + int(start) for start in piece.starts] if reset else []
        bounds.append(begin + length)
    return Batch(tokens.reshape(1, -1), targets.reshape(1, -1), torch.tensor(bounds))


def windows_of_step(
    step: int, batch: int, count: int, seed: int, *, shuffle: bool = True
) -> np.ndarray:
    """Return the indices of the windows of one step, given the number of windows `count`."""
    positions = np.arange(step * batch, (step + 1) * batch)
    if not shuffle:
        return positions % count
    return np.array([epoch_order(seed, int(p) // count, count)[p % count] for p in positions])


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Draw the permutation of the windows for an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)
