"""Launching the sweeps: tensors in, tensors out.

Inputs are float32, bfloat16 or float16, states and sums float32.  Outputs and gradients are written in the dtype they are wanted in.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.kernels.gpu import sweeps
from statemix.kernels.gpu.plan import Plan, next_power_of_2
from statemix.kernels.problem import Problem

OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": True}


@dataclass(frozen=True)
class Planned(Problem):
    """A scan and the plan for it."""

    plan: Plan

    @property
    def tiles(self) -> int:
        """Tiles of lanes that hold all rows of a step."""
        rows = next_power_of_2(self.m) if self.block else 1
        return -(-self.x.shape[2] * rows // self.plan.lanes)

    def constants(self) -> dict[str, object]:
        """What is compiled into a sweep."""
        return {
            "M": self.m,
            "BLOCK": self.block,
            "GATE": self.gate,
            "REVERSE": self.reverse,
            "LANES": self.plan.lanes,
        }


@dataclass(frozen=True)
class Chunks:
    """How many there are, how many to a sequence, and for packed sequences the owner of each and the first of each sequence."""

    count: int
    per: int
    owner: Tensor | None
    first: Tensor | None


def problem(
    block: bool,
    gate: str | None,
    X: Tensor,
    x: Tensor,
    h0: Tensor | None,
    cu_seqlens: Tensor | None,
    mask: Tensor | None,
    reverse: bool,
    plan: Plan,
) -> Planned:
    """Bring the arguments of an op into the form that the sweeps read."""
    h0, cu_seqlens, mask = (None if y is None else y.contiguous() for y in (h0, cu_seqlens, mask))
    return Planned(block, gate, X.contiguous(), x.contiguous(), h0, cu_seqlens, mask, reverse, plan)


def cut(scan: Planned) -> Chunks:
    """Chunks in the order of sequences, at least one to each; computed on the device, so that nothing waits for it.

    How many chunks packed sequences have is known there only; `count` is at least as large, and chunks beyond the last have no steps.
    """
    S, T, length = scan.sequences, scan.x.shape[1], scan.plan.chunk
    if scan.cu_seqlens is None:
        per = max(1, -(-T // length))
        return Chunks(S * per, per, None, None)
    lengths = scan.cu_seqlens.diff()
    needed = ((lengths + length - 1) // length).clamp(min=1)
    first = torch.cat([needed.new_zeros(1), needed.cumsum(0)])
    count = T // length + S
    owner = (
        torch.searchsorted(
            first, torch.arange(count, device=first.device, dtype=first.dtype), right=True
        )
        - 1
    )
    return Chunks(count, 0, owner.clamp(max=S - 1), first)


def forward(scan: Planned, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(h, final), h in `dtype`."""
    h, final = torch.empty_like(scan.x, dtype=dtype), scan.states()
    if final.numel() == 0:
        return h, final
    chunks = cut(scan) if scan.plan.chunk else None
    state = scan.h0
    if chunks is not None:
        ends = summarised(scan, chunks, scan.m + 1)
        state = joined(scan, chunks, ends, scan.h0, adjoint=False)
    tensors = (scan.X, scan.x, state, h, final, scan.mask)
    sweep(sweeps.forward, scan, chunks, tensors)
    return h, final


def backward(
    scan: Planned,
    h: Tensor,
    dh: Tensor,
    dfinal: Tensor,
    lags: Tensor | None,
    dtypes: tuple[torch.dtype, torch.dtype],
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dx, dh0), the first two in `dtypes`.

    `lags` are the states (B, T, n, m) that enter each step of a masked companion scan, whose lags the mask breaks up; else None.
    """
    h, dh, dfinal = h.contiguous(), dh.contiguous(), dfinal.contiguous()
    dX, dx, dh0 = (
        torch.empty_like(scan.X, dtype=dtypes[0]),
        torch.empty_like(scan.x, dtype=dtypes[1]),
        scan.states(),
    )
    if dh0.numel() == 0:
        return dX, dx, dh0
    chunks = cut(scan) if scan.plan.chunk else None
    state = dfinal
    if chunks is not None:
        ends = summarised(scan, chunks, scan.m)
        sweep(
            sweeps.backward,
            scan,
            chunks,
            (scan.X, scan.x, None, h, dh, None, None, None, None, None, ends, scan.mask),
        )
        state = joined(scan, chunks, ends, dfinal, adjoint=True)
    lags = None if lags is None else lags.contiguous()
    sweep(
        sweeps.backward,
        scan,
        chunks,
        (scan.X, scan.x, scan.h0, h, dh, state, dX, dx, dh0, lags, None, scan.mask),
    )
    return dX, dx, dh0


def sweep(kernel, scan: Planned, chunks: Chunks | None, tensors: tuple[Tensor | None, ...]) -> None:
    """Launch `forward` or `backward`, one warp for each tile of each chunk, or of each sequence."""
    count = scan.sequences if chunks is None else chunks.count
    places = (
        (scan.cu_seqlens, None, None)
        if chunks is None
        else (scan.cu_seqlens, chunks.owner, chunks.first)
    )
    sizes = (
        scan.x.shape[1],
        scan.plan.chunk,
        1 if chunks is None else chunks.per,
        scan.x.shape[2],
        scan.tiles,
    )
    chosen = {"CHUNKED": chunks is not None, "STEPS": scan.plan.steps}
    kernel[(count * scan.tiles,)](
        *tensors, *places, *sizes, **scan.constants(), **chosen, **OPTIONS
    )


def summarised(scan: Planned, chunks: Chunks, columns: int) -> Tensor:
    """(chunks, m + 1, n, m): of each chunk the columns of its matrix, and the end of its sweep from zero if `columns` exceeds m."""
    n, m, together = scan.x.shape[2], scan.m, min(columns, scan.plan.together)
    ends = scan.x.new_empty((chunks.count, m + 1, n, m), dtype=torch.float32)
    sizes = (scan.x.shape[1], scan.plan.chunk, chunks.per, n, scan.tiles)
    grid = (chunks.count * scan.tiles, -(-columns // together))
    tensors = (scan.X, scan.x, ends, scan.mask, scan.cu_seqlens, chunks.owner, chunks.first)
    sweeps.summarise[grid](
        *tensors, *sizes, **scan.constants(), COUNT=columns, TOGETHER=together, **OPTIONS
    )
    return ends


def joined(
    scan: Planned, chunks: Chunks, ends: Tensor, h0: Tensor | None, *, adjoint: bool
) -> Tensor:
    """(chunks, n, m): the state that enters each chunk."""
    n, m = scan.x.shape[2], scan.m
    entries = scan.x.new_zeros((chunks.count, n, m), dtype=torch.float32)
    lanes = max(scan.plan.lanes, next_power_of_2(m))
    tiles = -(-n * next_power_of_2(m) // lanes)
    sizes = (chunks.per, n, tiles)
    sweeps.join[(scan.sequences * tiles,)](
        ends, h0, entries, chunks.first, *sizes, M=m, ADJOINT=adjoint, LANES=lanes, **OPTIONS
    )
    return entries
