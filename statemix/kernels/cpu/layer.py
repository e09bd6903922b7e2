"""A full layer, x to y: projections and compiled scan, in chunks along the time axis.

The gates of a chunk are still in cache when the scan reads them. The gradients of a chunk's gates
are added to those of the weights before the next chunk overwrites them, so the gradients of all
gates never exist at once. All gates exist at once only if they are kept for the backward pass.

If the inputs are rows of a small table, the gates of every row are computed once, and softmax gates
are normalised once too; the scan reads them from cache. The backward scan sums the gradients of the
gates by row. These sums are added to the gradients of the weights at the end.

The dtype of x, float32 or bfloat16, is that of the products, gates and outputs. States, and sums of
gradients, are float32.

Sequences are concatenated on one axis of N steps. A chunk may end inside a sequence: a row of
`states` then carries its state to the next chunk.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, Weights
from statemix.kernels.cpu import pool, products, table
from statemix.kernels.cpu.library import Library
from statemix.kernels.cpu.readout import Readout
from statemix.kernels.cpu.scans import GATES, Scan, ScanGradient, half_flags, pointer, run
from statemix.kernels.lanes import (
    Sizes,
    pack_inputs,
    pack_outputs,
    sizes_of,
    state_of,
    unpack_inputs,
    unpack_outputs,
)

__all__ = [
    "STEPS",
    "Gradients",
    "Kept",
    "Layer",
    "Rows",
    "Table",
    "backward",
    "forward",
    "make_layer",
    "source_of",
]

# Steps per chunk: few, so that the gates of a chunk fit the last-level cache, but not too few,
# because each chunk reads and writes the gradients of the weights once.
STEPS = 1024


@dataclass(frozen=True)
class Layer:
    """Weights in the order of lanes, and the recurrence that runs between them."""

    library: Library
    recurrence: Recurrence
    gate: str
    sizes: Sizes
    W: Tensor
    c: Tensor
    readout: Readout

    @property
    def kind(self) -> str:
        """The gate function of scans of raw gates, a key of `GATES`."""
        return "odds" if self.sizes.differences else self.gate


@dataclass(frozen=True)
class Kept:
    """Saved for the backward pass: gates and states, or the state that entered each chunk."""

    gates: Tensor
    h: Tensor
    entries: Tensor


@dataclass(frozen=True)
class Chunk:
    """The steps a .. b − 1, and the sequences first .. last − 1 that they touch.

    `cut` is true if the first of these sequences starts before step a.
    """

    index: int
    a: int
    b: int
    first: int
    last: int
    cut: bool
    bounds: Tensor


def make_layer(
    library: Library,
    recurrence: Recurrence,
    gate: str,
    weights: Weights,
    dtype: torch.dtype,
    length: int,
    read_from: int,
) -> Layer:
    """A layer with its weights packed into lanes, in `dtype`.

    Its sequences are in rows of `length` steps, and it has outputs from step `read_from` of a row.
    """
    W_g, c, W_v, W_o = (w.float() for w in weights)  # differences of gates in float32
    sizes = sizes_of(*weights.state_shape(recurrence), recurrence=recurrence, gate=gate)
    W = pack_inputs(W_g, W_v, sizes)
    bias = pack_inputs(c.unsqueeze(1), c.new_zeros((W_v.shape[0], 1)), sizes).view(-1)
    readout = Readout(pack_outputs(W_o, sizes).to(dtype), length, read_from)
    return Layer(library, recurrence, gate, sizes, W.to(dtype), bias.to(dtype), readout)


class Gates(NamedTuple):
    """Gates and drivers in lanes: one row per step, or a table and the row that each step reads.

    `kind` is the gate function that a scan applies to them, a key of `GATES`.
    """

    X: Tensor
    rows: Tensor | None
    kind: str


@dataclass(frozen=True)
class Rows:
    """Inputs (N, d), one row per step."""

    layer: Layer
    x: Tensor

    @property
    def steps(self) -> int:
        return self.x.shape[0]

    def memory(self, keep: bool) -> Tensor:
        """Memory for the gates of all steps, or of one chunk."""
        steps = self.steps if keep else min(self.steps, STEPS)
        return pool.empty((steps, self.layer.sizes.inputs), self.x.dtype)

    def gates(self, s: Chunk, memory: Tensor, keep: bool) -> Gates:
        """Compute the raw gates and drivers of a chunk."""
        out = self.kept(s, memory).X if keep else memory[: s.b - s.a]
        products.into(out, self.x[s.a : s.b], self.layer.W.t(), self.layer.c)
        return Gates(out, None, self.layer.kind)

    def kept(self, s: Chunk, memory: Tensor) -> Gates:
        """The gates of a chunk that the forward pass kept."""
        return Gates(memory[s.a : s.b], None, self.layer.kind)

    def readable(self, memory: Tensor) -> Tensor:
        """What a scan reads instead of the raw gates: the same."""
        return memory

    def collector(self, memory: Tensor) -> "RowsGradient":
        inputs, d = self.layer.W.shape
        dgates = pool.empty((min(self.steps, STEPS), inputs), self.x.dtype)
        dx = pool.empty(tuple(self.x.shape), self.x.dtype)
        return RowsGradient(self, dgates, dx, torch.zeros(d, inputs), torch.zeros(inputs))


@dataclass(frozen=True)
class RowsGradient:
    """Adds the gradients of gates, chunk by chunk, to those of the weights."""

    rows: Rows
    dgates: Tensor
    dx: Tensor
    dW_t: Tensor  # transposed, which is wider than high
    dc: Tensor

    def memory(self, s: Chunk) -> Tensor:
        """The memory that a scan writes the gradients of a chunk to."""
        return self.dgates[: s.b - s.a]

    def add(self, s: Chunk) -> None:
        """Add the gradients that were written there."""
        dgates = self.memory(s)
        products.add_product(self.dW_t, self.rows.x[s.a : s.b].t(), dgates)
        self.dc.add_(dgates.sum(0))  # in float32, rounded at the end, like the product
        products.into(self.dx[s.a : s.b], dgates, self.rows.layer.W)

    def total(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of x, W and c."""
        return self.dx, self.dW_t.t().contiguous(), self.dc


@dataclass(frozen=True)
class Table:
    """Inputs that are rows of a table (V, d), and the row that each of N steps reads."""

    layer: Layer
    x: Tensor
    tokens: Tensor

    @property
    def steps(self) -> int:
        return self.tokens.shape[0]

    def memory(self, keep: bool) -> Tensor:
        """The gates of all rows, which a scan reads in place."""
        memory = self.x.new_empty((self.x.shape[0], self.layer.sizes.inputs))
        products.into(memory, self.x, self.layer.W.t(), self.layer.c)
        return memory

    def gates(self, s: Chunk, memory: Tensor, keep: bool) -> Gates:
        return self.kept(s, memory)

    def kept(self, s: Chunk, memory: Tensor) -> Gates:
        kind = "weights" if self.layer.sizes.differences else self.layer.kind
        return Gates(memory, self.tokens[s.a : s.b], kind)

    def readable(self, memory: Tensor) -> Tensor:
        """What a scan reads instead of the raw gates: softmax weights and weighted drivers."""
        sizes = self.layer.sizes
        return table.weights(self.layer.library, memory, sizes.m) if sizes.differences else memory

    def collector(self, memory: Tensor) -> "TableGradient":
        return TableGradient(self, memory, torch.zeros(memory.shape))


@dataclass(frozen=True)
class TableGradient:
    """The gradients of the table's gates in float32, which a scan adds to."""

    table: Table
    gates: Tensor
    dgates: Tensor

    def memory(self, s: Chunk) -> Tensor:
        return self.dgates

    def add(self, s: Chunk) -> None:
        """Do nothing: the scan has added them."""

    def total(self) -> tuple[Tensor, Tensor, Tensor]:
        layer = self.table.layer
        x, W = self.table.x, layer.W
        if layer.sizes.differences:
            table.finish_gradient(layer.library, self.gates, self.dgates, layer.sizes.m)
        dgates = self.dgates.to(x.dtype)
        dx = x.new_empty(x.shape)
        dW = W.new_empty(W.shape, dtype=torch.float32)
        products.into(dx, dgates, W)
        products.into(dW, dgates.t(), x)
        return dx, dW, self.dgates.sum(0)


def source_of(layer: Layer, x: Tensor, tokens: Tensor | None) -> Rows | Table:
    """The source of the gates: inputs at every step, or a table and its tokens.

    Tokens are checked because a kernel reads and writes any row that they name.
    """
    if tokens is None:
        return Rows(layer, x)
    if tokens.numel():
        smallest, largest = (int(y) for y in tokens.aminmax())
        if smallest < 0 or largest >= x.shape[0]:
            wrong = smallest if smallest < 0 else largest
            raise IndexError(
                f"`tokens` must name rows of the table, 0 .. {x.shape[0] - 1}, got {wrong}."
            )
    return Table(layer, x, tokens.to(torch.int64).contiguous())


def _chunks(bounds: list[int]) -> Iterator[Chunk]:
    """Cut the steps that `bounds` span into chunks."""
    N = bounds[-1]
    for index, a in enumerate(range(0, N, STEPS)):
        b = min(a + STEPS, N)
        first = bisect_right(bounds, a) - 1
        last = bisect_left(bounds, b)
        local = torch.tensor([min(max(bound, a), b) - a for bound in bounds[first : last + 1]])
        yield Chunk(index, a, b, first, last, bounds[first] < a, local)


def forward(
    layer: Layer,
    source: Rows | Table,
    h0: Tensor | None,
    bounds: list[int],
    mask: Tensor | None,
    keep: bool,
) -> tuple[Tensor, Tensor, Kept]:
    """y (N, d), the final states (S, n, m), and what the backward pass needs."""
    n, m, *_ = layer.sizes
    N = source.steps
    x = source.x
    y = pool.empty((layer.readout.count(N), layer.readout.W_o.shape[0]), x.dtype)
    states = torch.zeros(len(bounds) - 1, n, m)
    if h0 is not None:
        states.copy_(h0)
    gates = source.memory(keep)
    readable = source.readable(gates)
    h = pool.empty((N if keep else min(N, STEPS), layer.sizes.states))
    entries = torch.empty(0 if keep else -(-N // STEPS), n, m)
    for s in _chunks(bounds):
        rows = slice(s.a, s.b) if keep else slice(0, s.b - s.a)
        if not keep:
            entries[s.index] = states[s.first]
        _scan_forward(
            layer, s, source.gates(s, readable, keep), mask, states[s.first : s.last], h[rows]
        )
        layer.readout.forward(s.a, s.b, h[rows], y)
    return (
        y,
        states,
        Kept(gates, h, entries) if keep else Kept(x.new_empty(0), torch.empty(0), entries),
    )


@dataclass(frozen=True)
class Gradients:
    x: Tensor
    W_g: Tensor
    c: Tensor
    W_v: Tensor
    W_o: Tensor
    h0: Tensor


def backward(
    layer: Layer,
    source: Rows | Table,
    h0: Tensor | None,
    bounds: list[int],
    mask: Tensor | None,
    dy: Tensor,
    dfinal: Tensor,
    kept: Kept,
) -> Gradients:
    """All gradients, from the last chunk to the first."""
    sizes = layer.sizes
    keep = kept.gates.numel() > 0
    memory = kept.gates if keep else source.memory(False)
    readable = source.readable(memory)
    dh = pool.empty((min(source.steps, STEPS), sizes.states), source.x.dtype)
    states = dfinal.clone(memory_format=torch.contiguous_format)
    collected = source.collector(memory)
    dW_o = torch.zeros(layer.readout.W_o.shape)
    scratch = None if keep else torch.empty(dh.shape)
    for s in reversed(list(_chunks(bounds))):
        rows = slice(s.a, s.b)
        local = slice(0, s.b - s.a)
        start = _entering(layer, s, kept, h0, keep)
        gates = source.kept(s, readable) if keep else source.gates(s, readable, False)
        h = kept.h[rows] if scratch is None else scratch[local]
        if not keep:
            _scan_forward(layer, s, gates, mask, _zeros_or_copy(start, s, sizes), h)
        layer.readout.backward(s.a, s.b, dy, dh[local])
        _scan_backward(
            layer,
            s,
            gates,
            mask,
            start,
            h,
            dh[local],
            states[s.first : s.last],
            collected.memory(s),
        )
        collected.add(s)
        if not keep:
            layer.readout.add_gradient(s.a, s.b, dy, h, dW_o)
    if keep:
        dW_o = layer.readout.gradient(dy, kept.h)
    dx, dW, dc = collected.total()
    dW_g, dW_v = unpack_inputs(dW, sizes)
    dc_g, _ = unpack_inputs(dc.unsqueeze(1), sizes)
    return Gradients(dx, dW_g, dc_g.view(-1), dW_v, unpack_outputs(dW_o, sizes), states)


def _entering(layer: Layer, s: Chunk, kept: Kept, h0: Tensor | None, keep: bool) -> Tensor | None:
    """The initial states of a chunk's sequences; None for zero."""
    if not s.cut:
        return None if h0 is None else h0[s.first : s.last].contiguous()
    n, m, *_ = layer.sizes
    start = torch.zeros(s.last - s.first, n, m) if h0 is None else h0[s.first : s.last].clone()
    start[0] = state_of(kept.h[s.a - 1], layer.sizes) if keep else kept.entries[s.index]
    return start


def _zeros_or_copy(start: Tensor | None, s: Chunk, sizes: Sizes) -> Tensor:
    return torch.zeros(s.last - s.first, sizes.n, sizes.m) if start is None else start.clone()


def _scan_forward(
    layer: Layer, s: Chunk, gates: Gates, mask: Tensor | None, states: Tensor, h: Tensor
) -> None:
    """Scan one chunk from `states`, and overwrite them with the final ones."""
    arguments = _structure(layer, s, gates, mask, states, h, states)
    run(layer.library.handle.statemix_forward, arguments, layer.recurrence)


def _scan_backward(
    layer: Layer,
    s: Chunk,
    gates: Gates,
    mask: Tensor | None,
    start: Tensor | None,
    h: Tensor,
    dh: Tensor,
    states: Tensor,
    dgates: Tensor,
) -> None:
    """Scan one chunk backwards.

    `states` holds the gradients of the final states, and is overwritten with those of the initial
    states.
    """
    scan = _structure(layer, s, gates, mask, start, h, None)
    scan.half |= half_flags({"dh": dh, "dX": dgates})
    arguments = ScanGradient(scan, *(pointer(y) for y in (dh, states, dgates, None, states)))
    run(layer.library.handle.statemix_backward, arguments, layer.recurrence)


def _structure(
    layer: Layer,
    s: Chunk,
    gates: Gates,
    mask: Tensor | None,
    h0: Tensor | None,
    h: Tensor,
    final: Tensor | None,
) -> Scan:
    sizes = (1, s.b - s.a, layer.sizes.n, s.last - s.first, layer.sizes.m)
    real = None if mask is None else mask[s.a : s.b]
    pointers = (pointer(y) for y in (s.bounds, real, gates.rows, gates.X, None, h0, h, final))
    return Scan(
        *sizes,
        GATES[gates.kind],
        False,
        torch.get_num_threads(),
        True,
        half_flags({"X": gates.X}),
        *pointers,
    )
