"""Wrappers: a short convolution before any mixer, and an output gate after it.

    short_conv      u = silu(conv(x)),    y = inner(u)      over the last steps of each channel
    output_gate     y = σ(W_z x) ⊙ inner(x)

A wrapper is a mixer, so wrappers nest. Its option `inner` is the mixer inside: a name, or an object
with the field `mixer` and options:

    build_mixer("short_conv", d, {"inner": {"mixer": "bdlru", "n_blocks": 32, "block_size": 4}})
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import Mixer, build_choice, check_mixed, register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops.check import check_cu_seqlens
from statemix.ops.lookup import Lookup, gather
from statemix.ops.segments import checked_bounds, sequence_of, zero_where_masked
from statemix.types import Mask, SequenceBounds

__all__ = ["Convolution", "OutputGate", "ShortConvolution", "Wrapper", "innermost"]

Inputs = Float[Tensor, "B k d"]
Entry = str | Mapping[str, Any]


class Convolution(RaggedMixer):
    """u = silu(conv(x)), causal and depthwise; a state is the last kernel − 1 inputs."""

    def __init__(self, d_model: int, kernel: int) -> None:
        super().__init__()
        check_sizes({"d_model": d_model, "kernel": kernel})
        self.d_model = d_model
        self.kernel = kernel
        self.conv = cast(nn.Module, make_short_conv(d_model, kernel))

    @property
    def state_size(self) -> int:
        """Number of scalars in the last kernel − 1 inputs."""
        return (self.kernel - 1) * self.d_model

    def forward(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: Inputs | None = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
        read_from: int = 0,
    ) -> tuple[Float[Tensor, "B T_read d"], Inputs]:
        """Run all steps of a batch; packed sequences without a mask stay packed."""
        if cu_seqlens is None or mask is not None:
            return super().forward(x, state, cu_seqlens=cu_seqlens, mask=mask, read_from=read_from)
        x = gather(self._checked(x))
        check_cu_seqlens(cu_seqlens, x.shape[0])
        checked_bounds(cu_seqlens, x.shape[1])
        u, state = self._run_packed(x, state, cu_seqlens)
        return u[:, read_from:], state

    def run(
        self, x: Float[Tensor, "B T d"], state: Inputs | None, lengths: Integer[Tensor, " B"] | None
    ) -> tuple[Float[Tensor, "B T d"], Inputs]:
        """Run all rows, each up to its length."""
        return cast(tuple[Tensor, Tensor], self.conv(x, state, lengths))

    def _run_packed(
        self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor
    ) -> tuple[Tensor, Tensor]:
        """One convolution over all sequences, each after the kernel − 1 inputs before it."""
        k = self.kernel - 1
        T = x.shape[1]
        N = len(cu_seqlens) - 1
        if state is None:
            state = x.new_zeros((N, k, self.d_model))
        place = torch.arange(T, device=x.device) + k * (sequence_of(cu_seqlens, T) + 1)
        starts = cu_seqlens[:-1, None] + k * torch.arange(N, device=x.device)[:, None]
        lags = torch.arange(k, device=x.device)
        row = x.new_zeros((T + N * k, self.d_model))
        row = row.index_put((place,), x[0]).index_put((starts + lags,), state.to(x.dtype))
        u, _ = self.conv(row[None], None, None)
        ends = cu_seqlens[1:, None] + k * torch.arange(N, device=x.device)[:, None]
        return u[:, place], row[ends + lags]


class Wrapper(nn.Module):
    """A mixer around the mixer `inner`."""

    inner: nn.Module


@register_mixer("short_conv")
class ShortConvolution(Wrapper):
    """A short causal convolution before a mixer: u = silu(conv(x)), y = inner(u).

    A state is (the mixer's state, the last kernel − 1 inputs).

    Args:
        inner: the mixer: a name, or an object with the field `mixer` and the mixer's options.
        kernel: number of steps that the convolution sees.
    """

    def __init__(self, d_model: int, inner: Entry, kernel: int = 4) -> None:
        super().__init__()
        self.conv = Convolution(d_model, kernel)
        self.inner = build_choice(inner, d_model)

    @property
    def state_size(self) -> int:
        """Number of scalars in the mixer's state and the convolution's inputs."""
        return cast(Mixer, self.inner).state_size + self.conv.state_size

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: Any = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Run all steps of a batch; return the outputs and the final states."""
        own, before = (None, None) if state is None else state
        u, before = self.conv(x, before, cu_seqlens=cu_seqlens, mask=mask)
        mixed = self.inner(u, own, cu_seqlens=cu_seqlens, mask=mask)
        y, own = check_mixed(self.inner, mixed, x)
        return y, (own, before)

    def step(
        self, x_t: Float[Tensor, "B d"], state: Any = None
    ) -> tuple[Float[Tensor, "B d"], Any]:
        """Run one step of a batch."""
        own, before = (None, None) if state is None else state
        u_t, before = self.conv.step(x_t, before)
        y_t, own = cast(Mixer, self.inner).step(u_t, own)
        return y_t, (own, before)


@register_mixer("output_gate")
class OutputGate(Wrapper):
    """A gate on the output of a mixer, computed from its input: y = σ(W_z x) ⊙ inner(x).

    A state is that of the mixer.

    Args:
        inner: the mixer: a name, or an object with the field `mixer` and the mixer's options.
    """

    def __init__(self, d_model: int, inner: Entry) -> None:
        super().__init__()
        self.W_z = make_linear(d_model, d_model, bias=False)
        self.inner = build_choice(inner, d_model)

    @property
    def state_size(self) -> int:
        """Number of scalars in the mixer's state."""
        return cast(Mixer, self.inner).state_size

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: Any = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Run all steps of a batch; return the outputs and the final states."""
        x = zero_where_masked(x, mask)
        mixed = self.inner(x, state, cu_seqlens=cu_seqlens, mask=mask)
        y, state = check_mixed(self.inner, mixed, x)
        return torch.sigmoid(self.W_z(x)) * y, state

    def step(
        self, x_t: Float[Tensor, "B d"], state: Any = None
    ) -> tuple[Float[Tensor, "B d"], Any]:
        """Run one step of a batch."""
        y_t, state = cast(Mixer, self.inner).step(x_t, state)
        return torch.sigmoid(self.W_z(x_t)) * y_t, state


def innermost(mixer: nn.Module) -> nn.Module:
    """The mixer inside all wrappers."""
    return innermost(mixer.inner) if isinstance(mixer, Wrapper) else mixer
