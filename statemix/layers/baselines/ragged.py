"""A base class that adds packing and masks to mixers which support only right-padded rows.

Each sequence becomes a row with its real (unmasked) steps at the front. A subclass implements
`run(x, state, lengths)` for such rows; padding after `lengths` must not change the state.
"""

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.mixer import ReadsTables
from statemix.ops.check import check_cu_seqlens, check_floating, check_mask
from statemix.ops.dispatch.layer import resolve
from statemix.ops.lookup import Lookup, gather
from statemix.ops.segments import checked_bounds, zero_where_masked
from statemix.types import Mask, SequenceBounds

__all__ = ["RaggedMixer", "ShortConv", "last_inputs", "make_short_conv"]


class RaggedMixer(nn.Module, ABC):
    """A mixer defined by `run(x, state, lengths)`; `lengths` is None if there is no padding.

    The `run` of a subclass that is also a `ReadsTables` accepts a `Lookup`, which has no padding.
    """

    d_model: int

    @abstractmethod
    def run(
        self, x: Float[Tensor, "B T d"], state: Any, lengths: Integer[Tensor, " B"] | None
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Return y and the state after the first `lengths` steps of each row."""

    def forward(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: Any = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
        read_from: int = 0,
    ) -> tuple[Float[Tensor, "B T_read d"], Any]:
        """Run all steps of a batch; return the outputs from `read_from` on and the final states."""
        if cu_seqlens is None and mask is None:
            y, state = self.run(self._checked(x), state, None)
        else:
            y, state = self._run_ragged(self._checked(gather(x)), state, cu_seqlens, mask)
        return y[:, read_from:], state

    def _checked(self, x: Any) -> Any:
        """`x`, a tensor or, in a subclass that reads tables, a `Lookup`, after a check."""
        x = resolve(x, None) if isinstance(self, ReadsTables) else gather(x)
        if isinstance(x, Lookup):
            _check_input(x.table, "table", "(V, d)", self.d_model)
            return x
        _check_input(x, "x", "(B, T, d)", self.d_model)
        return x

    def _run_ragged(
        self, x: Tensor, state: Any, cu_seqlens: Tensor | None, mask: Tensor | None
    ) -> tuple[Tensor, Any]:
        """Run the real steps of each sequence as a row; the outputs of other steps are zero."""
        index, lengths = _real_steps(x, cu_seqlens, mask)
        if len(lengths) == 0:  # no sequences, and so no steps
            return torch.zeros_like(x), self.run(x[:0], state, None)[1]
        inside = torch.arange(index.shape[1], device=x.device) < lengths[:, None]
        # Rows are padded with arbitrary steps, which may be NaN.
        rows = zero_where_masked(x.flatten(0, 1)[index], inside)
        y, state = self.run(rows, state, lengths)
        flat = torch.zeros_like(x.flatten(0, 1)).index_put((index[inside],), y[inside].to(x.dtype))
        return flat.view_as(x), state

    def step(
        self, x_t: Float[Tensor, "B d"], state: Any = None
    ) -> tuple[Float[Tensor, "B d"], Any]:
        """Run one step of a batch."""
        _check_input(x_t, "x_t", "(B, d)", self.d_model)
        y, state = self.run(x_t.unsqueeze(1), state, None)
        return y.squeeze(1), state


def _check_input(x: Tensor, name: str, axes: str, d_model: int) -> None:
    """Raise an error unless x is a floating-point tensor with the given axes and width."""
    check_floating(name, x)
    if x.dim() != axes.count(",") + 1 or x.shape[-1] != d_model:
        raise ValueError(
            f"`{name}` must have the axes {axes} with d = {d_model}, "
            f"got the shape {tuple(x.shape)}."
        )


def _real_steps(x: Tensor, cu_seqlens: Tensor | None, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Find the flat indices of the real steps of each sequence, padded, and their number."""
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


def last_inputs(
    x: Float[Tensor, "B T d"],
    before: Float[Tensor, "B k d"],
    lengths: Integer[Tensor, " B"] | None,
) -> Float[Tensor, "B k d"]:
    """Return the last k inputs of each row, from `before` and then the real steps of x."""
    history = torch.cat([before, x], 1)
    k = before.shape[1]
    if lengths is None:
        return history[:, history.shape[1] - k :]
    index = lengths[:, None] + torch.arange(k, device=x.device)
    return history.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]))


def make_short_conv(channels: int, size: int, *, bias: bool = True) -> "ShortConv | None":
    """Make a short convolution over `size` steps, or None if `size` is 0."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ValueError(
            f"`conv` must be a non-negative number of steps (0: no convolution), got {size!r}."
        )
    return ShortConv(channels, size, bias=bias) if size else None


class ShortConv(nn.Module):
    """A causal depthwise convolution over the last `size` steps, followed by SiLU."""

    def __init__(self, channels: int, size: int, *, bias: bool) -> None:
        super().__init__()
        self.size = size
        self.weight = nn.Parameter(torch.empty(channels, 1, size))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None
        nn.init.uniform_(self.weight, -(size**-0.5), size**-0.5)

    def forward(
        self,
        x: Float[Tensor, "B T c"],
        before: Float[Tensor, "B k c"] | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T c"], Float[Tensor, "B k c"]]:
        """Return the output and the k = size − 1 inputs that the next step needs."""
        if before is None:
            before = x.new_zeros((x.shape[0], self.size - 1, x.shape[2]))
        if x.shape[1] == 0:
            return x, before
        history = torch.cat([before, x], 1).transpose(1, 2)
        y = nn.functional.conv1d(history, self.weight, self.bias, groups=x.shape[2])
        return nn.functional.silu(y.transpose(1, 2)), last_inputs(x, before, lengths)
