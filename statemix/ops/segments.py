"""Where sequences begin and end inside a batch, and what stood one step before.

`cu_seqlens` = (0, L_0, L_0 + L_1, ..., T) packs N sequences, empty ones included, into a batch of one.
Everything here but `checked_bounds` is tensor arithmetic: differentiable, and free of branches on data.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Sequences(NamedTuple):
    """How a batch divides into sequences, which steps are real, and which way a scan runs."""

    cu_seqlens: Tensor | None = None
    mask: Tensor | None = None
    reverse: bool = False

    def count(self, like: Tensor) -> int:
        """S: the batch size of `like`, or the number of sequences packed into it."""
        return like.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def backwards(self) -> "Sequences":
        """The same sequences, run through from the other end."""
        return self._replace(reverse=not self.reverse)

    def unmasked(self) -> "Sequences":
        """The same sequences with every step real."""
        return self._replace(mask=None)

    def flipped(self, T: int) -> "Sequences":
        """The same sequences after a flip of time, which reverses the order of packed ones too."""
        cu_seqlens = None if self.cu_seqlens is None else T - self.cu_seqlens.flip(0)
        return Sequences(
            cu_seqlens, None if self.mask is None else self.mask.flip(1), not self.reverse
        )


def checked_bounds(cu_seqlens: Tensor, T: int) -> list[int]:
    """The bounds as integers, after checking that they cut 0 .. T into sequences."""
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0:
        raise ValueError(
            f"`cu_seqlens` must start at 0, got {bounds[0]} first. Prepend a zero to the cumulative lengths."
        )
    for i in range(1, len(bounds)):
        if bounds[i] < bounds[i - 1]:
            raise ValueError(
                f"`cu_seqlens` must not decrease, got {bounds[i - 1]} then {bounds[i]} at index {i}. Pass cumulative lengths."
            )
    if bounds[-1] != T:
        raise ValueError(
            f"`cu_seqlens` must end at T = {T}, the length of the packed batch, got {bounds[-1]}."
        )
    return bounds


def sequence_of(cu_seqlens: Tensor, T: int) -> Tensor:
    """Which sequence each of the T packed steps belongs to."""
    steps = torch.arange(T, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens.contiguous(), steps, right=True) - 1


def is_first(cu_seqlens: Tensor, T: int, reverse: bool) -> Tensor:
    """Which of the T packed steps a scan enters its sequence by."""
    steps = torch.arange(T, device=cu_seqlens.device)
    sequence = sequence_of(cu_seqlens, T)
    return steps == (cu_seqlens[sequence + 1] - 1 if reverse else cu_seqlens[sequence])


def previous(h: Tensor, h0: Tensor, sequences: Sequences) -> Tensor:
    """What a scan holds as it enters each step: h one step back, and h0 at the start of each sequence."""
    cu_seqlens, _, reverse = sequences
    if cu_seqlens is None:
        edge = h0[:, None]
        return torch.cat([h, edge], 1)[:, 1:] if reverse else torch.cat([edge, h], 1)[:, :-1]
    T = h.shape[1]
    shifted = torch.roll(h, -1 if reverse else 1, 1)
    first = is_first(cu_seqlens, T, reverse).view(1, T, *[1] * (h.dim() - 2))
    return torch.where(first, h0[sequence_of(cu_seqlens, T)][None], shifted)


def over_time(mask: Tensor, like: Tensor) -> Tensor:
    """`mask` (B T), with trailing axes of size one to broadcast against `like`."""
    return mask.reshape(*mask.shape, *[1] * (like.dim() - 2))


def zero_where_masked(x: Tensor, mask: Tensor | None) -> Tensor:
    """`x` with zeros at masked steps, whatever stood there, NaN included."""
    return (
        x
        if mask is None
        else torch.where(over_time(mask, x), x, torch.zeros((), dtype=x.dtype, device=x.device))
    )
