"""The arguments of a scan and of a layer, as the kernels of every device read them.

The block recurrence reads X (B, T, n, m, c) and x (B, T, n, m); the companion recurrence reads X
(B, T, n, c) and x (B, T, n). Without a gate function, X contains coefficients (c = m). With a gate
function, X contains raw gates (c = m + 1).
"""

from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Recurrence", "ScanCall", "Weights"]


class Recurrence(Enum):
    """The linear recurrence of a scan or a layer."""

    BLOCK = "block"
    COMPANION = "companion"

    @property
    def is_block(self) -> bool:
        """True for blocks of m states, False for channels of order m."""
        return self is Recurrence.BLOCK

    def rows(self, m: int) -> int:
        """Number of rows of gates in a block of m states, or in a channel of order m."""
        return m if self.is_block else 1


@dataclass(frozen=True)
class ScanCall:
    """One call of a scan: the recurrence, the gate function (or None), and the op's arguments."""

    recurrence: Recurrence
    gate: str | None
    X: Tensor
    x: Tensor
    h0: Tensor | None = None
    cu_seqlens: Tensor | None = None
    mask: Tensor | None = None
    reverse: bool = False

    @property
    def m(self) -> int:
        """Block size or order."""
        return self.X.shape[-1] - (self.gate is not None)

    @property
    def count(self) -> int:
        """S: the batch size or the number of packed sequences."""
        return self.x.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def empty_states(self) -> Tensor:
        """Uninitialised float32 states (S, n, m)."""
        return self.x.new_empty((self.count, self.x.shape[2], self.m), dtype=torch.float32)

    def contiguous(self, dtype: torch.dtype | None = None) -> "ScanCall":
        """The same call with contiguous tensors, X, x and h0 in `dtype` if one is given."""
        h0 = self.h0
        return replace(
            self,
            X=self.X.to(dtype or self.X.dtype).contiguous(),
            x=self.x.to(dtype or self.x.dtype).contiguous(),
            h0=None if h0 is None else h0.to(dtype or h0.dtype).contiguous(),
            cu_seqlens=None if self.cu_seqlens is None else self.cu_seqlens.contiguous(),
            mask=None if self.mask is None else self.mask.contiguous(),
        )


class Weights(NamedTuple):
    """The parameters of a layer, in the paper's order: gates = W_g x + c, v = W_v x, y = W_o h."""

    W_g: Tensor
    c: Tensor
    W_v: Tensor
    W_o: Tensor

    @property
    def m(self) -> int:
        """Block size or order: each entry of v has m + 1 gates."""
        return self.W_g.shape[0] // self.W_v.shape[0] - 1

    def state_shape(self, recurrence: Recurrence) -> tuple[int, int]:
        """(n, m)."""
        return self.W_v.shape[0] // recurrence.rows(self.m), self.m
