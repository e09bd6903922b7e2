"""Lane order: eight blocks side by side, the memory layout that is fastest for kernels.

    gates and drivers   (..., G, rows, c + 1, 8)      the c gates of a row, and its v
    states              (..., G, m, 8)

Here G = ceil(n / 8) is the number of groups, and rows = m for blocks, 1 for channels. The outputs
of a projection can have any order, so a layer permutes its (small) weights, never the (large)
gates. The last group is padded with blocks whose weights are zero, and whose states therefore stay
zero.

A row has m + 1 gates: one for each of the m states, and one for the input. Softmax is invariant to
a common shift of its arguments, so the input gate is subtracted from all gates and omitted. The
remaining c = m differences are the log odds of each state relative to the input. The subtraction is
done once, on the weights, and the projection has fewer outputs: a fifth fewer at m = 4, half as
many at m = 1. All other gate functions keep c = m + 1 gates.
"""

import math
from collections.abc import Iterator
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
    """The sizes of a layer: n blocks of m states, with `rows` rows of c gates each."""

    n: int
    m: int
    rows: int
    c: int

    @property
    def groups(self) -> int:
        return math.ceil(self.n / LANES)

    @property
    def differences(self) -> bool:
        """True if gates are stored as differences from the input gate."""
        return self.c == self.m

    @property
    def inputs(self) -> int:
        """Number of gates and drivers of a step in lane order."""
        return self.groups * self.rows * (self.c + 1) * LANES

    @property
    def states(self) -> int:
        """Number of states of a step in lane order."""
        return self.groups * self.m * LANES


def sizes_of(n: int, m: int, *, recurrence: Recurrence, gate: str) -> Sizes:
    """The sizes of a layer whose gate function is `gate`."""
    return Sizes(n, m, recurrence.rows(m), m if gate == "softmax" else m + 1)


def _into_lanes(x: Tensor, n: int) -> Tensor:
    """(n, a, d) to (G, a, 8, d), padded with zeros."""
    groups = math.ceil(n / LANES)
    padded = F.pad(x, (0, 0, 0, 0, 0, groups * LANES - n))
    return padded.unflatten(0, (groups, LANES)).transpose(1, 2)


def _out_of_lanes(x: Tensor, n: int) -> Tensor:
    """(G, a, 8, d) back to (n, a, d)."""
    return x.transpose(1, 2).flatten(0, 1)[:n]


def _parts(n: int) -> Iterator[tuple[slice, slice, int]]:
    """Groups that are full, then one that is not: groups, their blocks, and the lanes of each."""
    full = n // LANES
    if full:
        yield slice(0, full), slice(0, full * LANES), LANES
    if n % LANES:
        yield slice(full, full + 1), slice(full * LANES, n), n % LANES


def _side_by_side(x: Tensor, lanes: int) -> Tensor:
    """Blocks (count, rows, c, d) as (groups, rows, c, lanes, d), without a copy."""
    return x.unflatten(0, (-1, lanes)).permute(0, 2, 3, 1, 4)


def pack_inputs(gates: Tensor, v: Tensor, sizes: Sizes) -> Tensor:
    """The rows of W_g (n rows (m + 1), d) and W_v (n rows, d), or biases, in lane order."""
    n, m, rows, c = sizes
    W_g = gates.reshape(n, rows, m + 1, -1)
    W_v = v.reshape(n, rows, 1, -1)
    packed = gates.new_empty((sizes.groups, rows, c + 1, LANES, W_g.shape[-1]))
    packed[n // LANES :] = 0
    for groups, blocks, lanes in _parts(n):
        into = packed[groups, ..., :lanes, :]
        own = _side_by_side(W_g[blocks], lanes)
        if sizes.differences:
            torch.sub(own[:, :, :m], own[:, :, m:], out=into[:, :, :m])
        else:
            into[:, :, :c] = own
        into[:, :, c:] = _side_by_side(W_v[blocks], lanes)
    return packed.view(sizes.inputs, -1)


def unpack_inputs(packed: Tensor, sizes: Sizes) -> tuple[Tensor, Tensor]:
    """The adjoint of `pack_inputs`, for gradients; that of the input gate is minus their sum."""
    n, m, rows, c = sizes
    in_lanes = packed.view(sizes.groups, rows, c + 1, LANES, -1)
    gates = packed.new_empty((n, rows, m + 1, in_lanes.shape[-1]))
    v = packed.new_empty((n, rows, 1, in_lanes.shape[-1]))
    for groups, blocks, lanes in _parts(n):
        own = in_lanes[groups, ..., :lanes, :]
        _side_by_side(gates[blocks], lanes)[:, :, :c] = own[:, :, :c]
        _side_by_side(v[blocks], lanes)[:] = own[:, :, c:]
    if sizes.differences:
        torch.sum(gates[:, :, :m], 2, keepdim=True, out=gates[:, :, m:]).neg_()
    return gates.flatten(0, 2), v.flatten(0, 2)


def pack_outputs(W_o: Tensor, sizes: Sizes) -> Tensor:
    """The columns of W_o (d, n m) in lane order."""
    return _into_lanes(W_o.t().reshape(sizes.n, sizes.m, -1), sizes.n).reshape(sizes.states, -1).t()


def unpack_outputs(packed: Tensor, sizes: Sizes) -> Tensor:
    """The inverse of `pack_outputs`."""
    lanes = packed.t().view(sizes.groups, sizes.m, LANES, -1)
    return _out_of_lanes(lanes, sizes.n).flatten(0, 1).t()


def state_of(h_t: Tensor, sizes: Sizes) -> Tensor:
    """The state (n, m) of one step in lane order."""
    return _out_of_lanes(h_t.reshape(sizes.groups, sizes.m, LANES, 1), sizes.n).squeeze(-1)
