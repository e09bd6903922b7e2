"""Eight blocks side by side: the order of memory that kernels read fastest, and how weights get into it.

    gates and drivers   (..., G, rows, m + 2, 8)      a row's m state gates, its input gate, its v
    states              (..., G, m, 8)

with G = ceil(n / 8) groups, and rows = m for blocks of states, 1 for channels.  The order of a projection's outputs is free, so the small
weights are permuted and the large gates never are.  Blocks that fill up the last group have weights of zero, and states that stay zero.
"""

import math
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

LANES = 8


class Sizes(NamedTuple):
    """What a layer's weights are cut into: n blocks of `rows` rows of gates, and of m states."""

    n: int
    m: int
    rows: int

    @property
    def groups(self) -> int:
        return math.ceil(self.n / LANES)

    @property
    def inputs(self) -> int:
        """Gates and drivers of a step, in lanes."""
        return self.groups * self.rows * (self.m + 2) * LANES

    @property
    def states(self) -> int:
        """States of a step, in lanes."""
        return self.groups * self.m * LANES


def into_lanes(x: Tensor, n: int) -> Tensor:
    """(n, a, d) to (G, a, 8, d), zeros in the last lanes."""
    groups = math.ceil(n / LANES)
    padded = F.pad(x, (0, 0, 0, 0, 0, groups * LANES - n))
    return padded.unflatten(0, (groups, LANES)).transpose(1, 2)


def out_of_lanes(x: Tensor, n: int) -> Tensor:
    """(G, a, 8, d) back to (n, a, d)."""
    return x.transpose(1, 2).flatten(0, 1)[:n]


def pack_inputs(gates: Tensor, v: Tensor, sizes: Sizes) -> Tensor:
    """Rows of W_g and W_v (or of their biases, with d = 1), (n rows (m + 1), d) and (n rows, d), in the order of lanes."""
    n, m, rows = sizes
    both = F.pad(gates.reshape(n, rows, m + 1, -1), (0, 0, 0, 1))
    both[:, :, m + 1] = v.view(n, rows, -1)
    return into_lanes(both.flatten(1, 2), n).reshape(sizes.inputs, -1)


def unpack_inputs(packed: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The inverse of `pack_inputs`."""
    n, m, rows = sizes
    both = out_of_lanes(packed.view(sizes.groups, rows * (m + 2), LANES, -1), n).unflatten(1, (rows, m + 2))
    return both[:, :, : m + 1].flatten(0, 2), both[:, :, m + 1].flatten(0, 1)


def pack_outputs(W_o: Tensor, sizes: Sizes) -> Tensor:
    """Columns of W_o (d, n m), in the order of lanes."""
    return into_lanes(W_o.t().reshape(sizes.n, sizes.m, -1), sizes.n).reshape(sizes.states, -1).t()


def unpack_outputs(packed: Tensor, sizes: Sizes) -> Tensor:
    """The inverse of `pack_outputs`."""
    return out_of_lanes(packed.t().view(sizes.groups, sizes.m, LANES, -1), sizes.n).flatten(0, 1).t()


def state_of(h_t: Tensor, sizes: Sizes) -> Tensor:
    """The state (n, m) that one step's lanes hold."""
    return out_of_lanes(h_t.reshape(sizes.groups, sizes.m, LANES, 1), sizes.n).squeeze(-1)
