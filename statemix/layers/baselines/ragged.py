"""Mixers whose own code knows only sequences that end early: packing and masks are brought to that form, and back.

Real steps are moved to the front of their row, one row a sequence.  A subclass computes rows of x with `lengths` of them real, and must
leave the state alone from there on.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from statemix.ops.check import check_cu_seqlens, check_floating, check_mask
from statemix.ops.segments import checked_bounds, zero_where_masked


class RaggedMixer(nn.Module, ABC):
    """A mixer by way of `run(x, state, lengths)`; lengths is None where every step is real."""

    d_model: int

    @abstractmethod
    def run(self, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Tensor, Any]:
        """y and the states after `lengths` steps of each row."""

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """All steps of a batch, and its final states."""
        check_input(x, "x", "(B, T, d)", self.d_model)
        if cu_seqlens is None and mask is None:
            return self.run(x, state, None)
        if (
            x.shape[0] if cu_seqlens is None else len(cu_seqlens) - 1
        ) == 0:  # no sequences, and so no steps
            real_steps(x, cu_seqlens, mask)
            return torch.zeros_like(x), self.run(x[:0], state, None)[1]
        index, lengths = real_steps(x, cu_seqlens, mask)
        inside = torch.arange(index.shape[1], device=x.device) < lengths[:, None]
        rows = zero_where_masked(
            x.flatten(0, 1)[index], inside
        )  # a row is filled up with steps of others, NaN perhaps
        y, state = self.run(rows, state, lengths)
        flat = torch.zeros_like(x.flatten(0, 1)).index_put((index[inside],), y[inside].to(x.dtype))
        return flat.view_as(x), state

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step of a batch."""
        check_input(x_t, "x_t", "(B, d)", self.d_model)
        y, state = self.run(x_t.unsqueeze(1), state, None)
        return y.squeeze(1), state


def check_input(x: Tensor, name: str, axes: str, d_model: int) -> None:
    check_floating(name, x)
    if x.dim() != axes.count(",") + 1 or x.shape[-1] != d_model:
        raise ValueError(
            f"`{name}` must have the axes {axes} with d = {d_model}, got the shape {tuple(x.shape)}."
        )


def real_steps(x: Tensor, cu_seqlens: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """For each sequence the flat positions of its real steps, filled up with any, and how many there are."""
    B, T, _ = x.shape
    real = torch.ones((B, T), dtype=torch.bool, device=x.device) if mask is None else mask
    if mask is not None:
        check_mask(mask, B, T)
    if cu_seqlens is None:
        bounds = [b * T for b in range(B + 1)]
    else:
        check_cu_seqlens(cu_seqlens, B)
        bounds = checked_bounds(cu_seqlens, T)
    flat = real.flatten()
    steps = [torch.arange(a, b, device=x.device)[flat[a:b]] for a, b in pairwise(bounds)]
    lengths = torch.tensor([len(each) for each in steps], dtype=torch.long, device=x.device)
    if not steps:
        return lengths[:, None], lengths
    return nn.utils.rnn.pad_sequence(steps, batch_first=True), lengths


def last_inputs(x: Tensor, before: Tensor, lengths: Tensor | None) -> Tensor:
    """The last inputs of each row, as many as `before` holds: `before` (B, k, d) and then the real steps of x (B, T, d)."""
    history, k = torch.cat([before, x], 1), before.shape[1]
    if lengths is None:
        return history[:, history.shape[1] - k :]
    index = lengths[:, None] + torch.arange(k, device=x.device)
    return history.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]))


def make_short_conv(channels: int, size: int) -> "ShortConv | None":
    """A short convolution over `size` steps, None for no steps."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(
            f"`conv` must be a whole number of steps, 0 for no convolution, got {size!r}."
        )
    return ShortConv(channels, size) if size else None


class ShortConv(nn.Module):
    """A causal convolution of each channel by itself over the last `size` steps, with silu."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(channels, 1, size))
        self.bias = nn.Parameter(torch.zeros(channels))
        nn.init.uniform_(self.weight, -(size**-0.5), size**-0.5)

    def forward(
        self, x: Tensor, before: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """y (B, T, channels) and the inputs that the next step needs."""
        if before is None:
            before = x.new_zeros((x.shape[0], self.size - 1, x.shape[2]))
        if x.shape[1] == 0:
            return x, before
        history = torch.cat([before, x], 1).transpose(1, 2)
        y = nn.functional.conv1d(history, self.weight, self.bias, groups=x.shape[2])
        return nn.functional.silu(y.transpose(1, 2)), last_inputs(x, before, lengths)
