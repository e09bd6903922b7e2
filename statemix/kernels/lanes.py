"""Eight blocks side by side: the memory layout that kernels read fastest, and how weights get into it.

    gates and drivers   (..., G, rows, c + 1, 8)      a row's c gates and its v
    states              (..., G, m, 8)

with G = ceil(n / 8) groups, and rows = m for blocks of states, 1 for channels.  The order of a projection's outputs is free, so the small
weights are permuted and the large gates never are.  Blocks that fill up the last group have weights of zero, and states that stay zero.

A row has c = m + 1 gates, for its m states and its input.  A softmax does not change when all of them are shifted by the same amount, so
the input's gate is shifted to zero and dropped: c = m differences remain, the log odds of each state over the input.  The weights are
subtracted from each other once, and the projection has fewer outputs: a fifth fewer at m = 4, half as many at m = 1.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.kernels.calls import Recurrence

__all__ = [
    "LANES",
    "Sizes",
    "pack_inputs",
    "pack_outputs",
    "sizes_of",
    "state_of",
    "unpack_inputs",
    "unpack_outputs",
]

LANES = 8


class Sizes(NamedTuple):
    """How a layer's weights divide: n blocks of m states and `rows` rows of c gates."""

    n: int
    m: int
    rows: int
    c: int

    @property
    def groups(self) -> int:
        return math.ceil(self.n / LANES)

    @property
    def differences(self) -> bool:
        """True if gates are stored as differences from the input's gate."""
        return self.c == self.m

    @property
    def inputs(self) -> int:
        """Gates and drivers of a step, in lanes."""
        return self.groups * self.rows * (self.c + 1) * LANES

    @property
    def states(self) -> int:
        """States of a step, in lanes."""
        return self.groups * self.m * LANES


def sizes_of(n: int, m: int, *, recurrence: Recurrence, gate: str) -> Sizes:
    """The sizes of a layer whose gate function is `gate`."""
    return Sizes(n, m, recurrence.rows(m), m if gate == "softmax" else m + 1)


def _into_lanes(x: Tensor, n: int) -> Tensor:
    """(n, a, d) to (G, a, 8, d), zeros in the last lanes."""
    groups = math.ceil(n / LANES)
    padded = F.pad(x, (0, 0, 0, 0, 0, groups * LANES - n))
    return padded.unflatten(0, (groups, LANES)).transpose(1, 2)


def _out_of_lanes(x: Tensor, n: int) -> Tensor:
    """(G, a, 8, d) back to (n, a, d)."""
    return x.transpose(1, 2).flatten(0, 1)[:n]


def pack_inputs(gates: Tensor, v: Tensor, sizes: Sizes) -> Tensor:
    """Rows of W_g and W_v (or of their biases, with d = 1), (n rows (m + 1), d) and (n rows, d), in the order of lanes."""
    n, m, rows, c = sizes
    rows_of_gates = gates.reshape(n, rows, m + 1, -1)
    if sizes.differences:
        rows_of_gates = rows_of_gates[:, :, :m] - rows_of_gates[:, :, m:]
    both = F.pad(rows_of_gates, (0, 0, 0, 1))
    both[:, :, c] = v.view(n, rows, -1)
    return _into_lanes(both.flatten(1, 2), n).reshape(sizes.inputs, -1)


def unpack_inputs(packed: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The adjoint of `pack_inputs`, for gradients: of differences, the input's gate has minus their sum."""
    n, _, rows, c = sizes
    both = _out_of_lanes(packed.view(sizes.groups, rows * (c + 1), LANES, -1), n).unflatten(
        1, (rows, c + 1)
    )
    gates = both[:, :, :c]
    if sizes.differences:
        gates = torch.cat([gates, -gates.sum(2, keepdim=True)], 2)
    return gates.flatten(0, 2), both[:, :, c].flatten(0, 1)


def pack_outputs(W_o: Tensor, sizes: Sizes) -> Tensor:
    """Columns of W_o (d, n m), in the order of lanes."""
    return _into_lanes(W_o.t().reshape(sizes.n, sizes.m, -1), sizes.n).reshape(sizes.states, -1).t()


def unpack_outputs(packed: Tensor, sizes: Sizes) -> Tensor:
    """The inverse of `pack_outputs`."""
    return (
        _out_of_lanes(packed.t().view(sizes.groups, sizes.m, LANES, -1), sizes.n).flatten(0, 1).t()
    )


def state_of(h_t: Tensor, sizes: Sizes) -> Tensor:
    """The state (n, m) that one step's lanes hold."""
    return _out_of_lanes(h_t.reshape(sizes.groups, sizes.m, LANES, 1), sizes.n).squeeze(-1)
