"""The sequences in a batch: their bounds, masks and direction, and shifts by one step.

`cu_seqlens` = (0, L_0, L_0 + L_1, ..., T) packs N sequences, some possibly empty, into a batch of
one. All functions except `checked_bounds` are differentiable and do not branch on data.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Integer, Shaped
from torch import Tensor

from statemix.types import BlockValues, Mask, SequenceBounds, States

__all__ = [
    "Sequences",
    "checked_bounds",
    "is_first",
    "over_time",
    "previous",
    "sequence_of",
    "zero_where_masked",
]


class Sequences(NamedTuple):
    """The division of a batch into sequences, its real steps, and the direction of a scan."""

    cu_seqlens: Tensor | None = None
    mask: Tensor | None = None
    reverse: bool = False

    def count(self, like: Tensor) -> int:
        """S: the batch size of `like`, or the number of sequences packed into it."""
        return like.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    def backwards(self) -> "Sequences":
        """The same sequences, in the opposite direction."""
        return self._replace(reverse=not self.reverse)

    def unmasked(self) -> "Sequences":
        """The same sequences without a mask."""
        return self._replace(mask=None)

    def flipped(self, T: int) -> "Sequences":
        """The same sequences after a flip of time, which also reverses the order of packed ones."""
        cu_seqlens = None if self.cu_seqlens is None else T - self.cu_seqlens.flip(0)
        mask = None if self.mask is None else self.mask.flip(1)
        return Sequences(cu_seqlens, mask, not self.reverse)


def checked_bounds(cu_seqlens: SequenceBounds, T: int) -> list[int]:
    """The bounds as integers, after checking that they divide 0 .. T into sequences."""
    bounds: list[int] = cu_seqlens.tolist()
    if bounds[0] != 0:
        raise ValueError(
            f"`cu_seqlens` must start at 0, got {bounds[0]} first. "
            "Prepend a zero to the cumulative lengths."
        )
    for i in range(1, len(bounds)):
        if bounds[i] < bounds[i - 1]:
            raise ValueError(
                f"`cu_seqlens` must not decrease, got {bounds[i - 1]} then {bounds[i]} "
                f"at index {i}. Pass cumulative lengths."
            )
    if bounds[-1] != T:
        raise ValueError(
            f"`cu_seqlens` must end at T = {T}, the length of the packed batch, got {bounds[-1]}."
        )
    return bounds


def sequence_of(cu_seqlens: SequenceBounds, T: int) -> Integer[Tensor, " T"]:
    """The index of the sequence that each of the T packed steps belongs to."""
    steps = torch.arange(T, device=cu_seqlens.device, dtype=cu_seqlens.dtype)
    return torch.searchsorted(cu_seqlens.contiguous(), steps, right=True) - 1


def is_first(cu_seqlens: SequenceBounds, T: int, reverse: bool) -> Bool[Tensor, " T"]:
    """True at packed steps that are the first of their sequence in the direction of the scan."""
    steps = torch.arange(T, device=cu_seqlens.device)
    sequence = sequence_of(cu_seqlens, T)
    return steps == (cu_seqlens[sequence + 1] - 1 if reverse else cu_seqlens[sequence])


def previous(h: BlockValues, h0: States, sequences: Sequences) -> BlockValues:
    """The state before each step: h of the step before, or h0 at the start of a sequence."""
    cu_seqlens, _, reverse = sequences
    if cu_seqlens is None:
        edge = h0[:, None]
        return torch.cat([h, edge], 1)[:, 1:] if reverse else torch.cat([edge, h], 1)[:, :-1]
    T = h.shape[1]
    shifted = torch.roll(h, -1 if reverse else 1, 1)
    first = is_first(cu_seqlens, T, reverse).view(1, T, *[1] * (h.dim() - 2))
    return torch.where(first, h0[sequence_of(cu_seqlens, T)][None], shifted)


def over_time(mask: Mask, like: Shaped[Tensor, "B T *rest"]) -> Bool[Tensor, "B T *ones"]:
    """`mask` with trailing axes of size one, to broadcast against `like`."""
    return mask.reshape(*mask.shape, *[1] * (like.dim() - 2))


def zero_where_masked(
    x: Shaped[Tensor, "B T *rest"], mask: Mask | None
) -> Shaped[Tensor, "B T *rest"]:
    """`x` with zeros at masked steps, even where it is NaN."""
    if mask is None:
        return x
    return torch.where(over_time(mask, x), x, torch.zeros((), dtype=x.dtype, device=x.device))
