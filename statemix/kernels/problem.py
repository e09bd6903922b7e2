"""One scan as every device's kernels are given it.

`block` chooses the block recurrence, with X (B, T, n, m, c) and x (B, T, n, m), or the companion one, with X (B, T, n, c) and
x (B, T, n).  A gate function of None means that X holds coefficients (c = m); otherwise X holds raw gates (c = m + 1).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """The inputs of a scan, contiguous, and how they divide into sequences."""

    block: bool
    gate: str | None
    X: Tensor
    x: Tensor
    h0: Tensor | None
    cu_seqlens: Tensor | None
    mask: Tensor | None
    reverse: bool

    @property
    def m(self) -> int:
        return self.X.shape[-1] - (self.gate is not None)

    @property
    def sequences(self) -> int:
        """S: the batch, or the sequences packed into it."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def states(self) -> Tensor:
        """Unwritten states (S, n, m)."""
        return self.x.new_empty((self.sequences, self.x.shape[2], self.m), dtype=torch.float32)
