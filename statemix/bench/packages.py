"""Packages that compute our recurrences: torch-slices the block-diagonal one, torchlpc the other.

    torch-slices    h[t] = h[t-1] + A[t] h[t-1] + b[t]
    torchlpc        h[t] = x[t] − Σ_i a_i[t] h[t-i],    i = 1 .. m

Both take weights that are already normalised, and torchlpc takes a channel as a sequence of its
own. The softmax and the change of layout are part of their times.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from statemix.layers import HLRU
from statemix.ops.lags import lagged
from statemix.ops.segments import Sequences

__all__ = ["LPCHLRU", "by_lpc", "scan_of_slices"]


class _Columns(nn.Module):
    """Some of the inputs, in place of a linear map of all of them."""

    def __init__(self, start: int, count: int) -> None:
        super().__init__()
        self.columns = slice(start, start + count)

    def forward(self, x: Tensor) -> Tensor:
        return x[..., self.columns]


def scan_of_slices(n: int, m: int) -> Callable[[Tensor, Tensor], Tensor]:
    """The states computed by torch-slices from gates (B, T, n, m, m + 1) and values (B, T, n, m).

    A layer of the package scans what two linear maps compute. Here its inputs are the matrices and
    vectors themselves, and the maps select them.
    """
    from slices import SLiCE

    d = n * m
    with torch.device("meta"):  # maps of this size would not fit into memory
        layer: Any = SLiCE(d * m + d, d, block_size=m, path_mode="increments")
    layer.vf_A = _Columns(1, d * m)  # after a one that the layer prepends
    layer.vf_B = _Columns(1 + d * m, d)
    layer.init = nn.Parameter(torch.zeros(d), requires_grad=False)

    def scan(gates: Tensor, v: Tensor) -> Tensor:
        w = torch.softmax(gates, -1)
        A = w[..., :-1] - torch.eye(m)
        states: Tensor = layer(torch.cat([A.flatten(2), (w[..., -1] * v).flatten(2)], -1))
        return states.view(v.shape)

    return scan


def by_lpc(gates: Tensor, v: Tensor) -> Tensor:
    """The outputs (B, T, n) computed by torchlpc from gates (B, T, n, m + 1) and values (B, T, n).

    It has no kernel for bfloat16, and computes in float32.
    """
    from torchlpc import sample_wise_lpc

    B, T, n = v.shape
    w = torch.softmax(gates.float(), -1)
    a, x = (y.transpose(1, 2).flatten(0, 1) for y in (-w[..., :-1], w[..., -1] * v))
    h: Tensor = sample_wise_lpc(x, a)
    return h.view(B, n, T).transpose(1, 2)


class LPCHLRU(HLRU):
    """HLRU on torchlpc."""

    def scan(
        self, gates: Tensor, v: Tensor, h0: Tensor | None, time: Sequences
    ) -> tuple[Tensor, Tensor]:
        """The states of all steps, and the final ones."""
        h = by_lpc(gates.unflatten(2, self.gate_shape), v)
        before = h.new_zeros(h.shape[0], *self.state_shape) if h0 is None else h0
        states = lagged(h, before, time)
        return states, states[:, -1]
