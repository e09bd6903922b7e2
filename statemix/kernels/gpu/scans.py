"""Launches of the sweeps.

Inputs are float32, bfloat16 or float16; states and sums are float32. Outputs and gradients are
written directly in the dtype that the caller requests.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.kernels.calls import ScanCall
from statemix.kernels.gpu import sweeps
from statemix.kernels.gpu.plan import Plan, next_power_of_2

__all__ = ["OPTIONS", "backward", "forward"]

OPTIONS = {"num_warps": 1, "num_stages": 1, "enable_fp_fusion": True}


@dataclass(frozen=True)
class Chunks:
    """The chunks of all sequences.

    count: the number of chunks.
    per: the number of chunks per sequence, if sequences are not packed.
    owner: the sequence of each chunk, if sequences are packed.
    first: the first chunk of each sequence, if sequences are packed.
    """

    count: int
    per: int
    owner: Tensor | None
    first: Tensor | None


def _cut(call: ScanCall, length: int) -> Chunks | None:
    """Split sequences into chunks of `length` steps, at least one per sequence; None for length 0.

    Packed sequences are split on the device, without synchronisation. Since only the device knows
    how many chunks there are, `count` is an upper bound, and the surplus chunks have no steps.
    """
    if length == 0:
        return None
    S = call.count
    T = call.x.shape[1]
    if call.cu_seqlens is None:
        per = max(1, -(-T // length))
        return Chunks(S * per, per, None, None)
    lengths = call.cu_seqlens.diff()
    needed = ((lengths + length - 1) // length).clamp(min=1)
    first = torch.cat([needed.new_zeros(1), needed.cumsum(0)])
    count = T // length + S
    chunk = torch.arange(count, device=first.device, dtype=first.dtype)
    owner = torch.searchsorted(first, chunk, right=True) - 1
    return Chunks(count, 0, owner.clamp(max=S - 1), first)


def forward(call: ScanCall, plan: Plan, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(h, final), with h in `dtype`."""
    call = call.contiguous()
    h = torch.empty_like(call.x, dtype=dtype)
    final = call.empty_states()
    if final.numel() == 0:
        return h, final
    chunks = _cut(call, plan.chunk)
    state = call.h0
    if chunks is not None:
        ends = _summarised(call, plan, chunks, call.m + 1)
        state = _joined(call, plan, chunks, ends, call.h0, adjoint=False)
    _sweep(sweeps.forward, call, plan, chunks, (call.X, call.x, state, h, final, call.mask))
    return h, final


def backward(
    call: ScanCall,
    plan: Plan,
    h: Tensor,
    dh: Tensor,
    dfinal: Tensor,
    lags: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dX, dx, dh0), with dX and dx in the dtypes of X and x.

    `lags` are the states (B, T, n, m) before each step of a masked companion scan, whose lags skip
    masked steps; None for other scans.
    """
    call = call.contiguous()
    h, dh, state = (y.contiguous() for y in (h, dh, dfinal))
    dX = torch.empty_like(call.X)
    dx = torch.empty_like(call.x)
    dh0 = call.empty_states()
    if dh0.numel() == 0:
        return dX, dx, dh0
    chunks = _cut(call, plan.chunk)
    if chunks is not None:
        ends = _summarised(call, plan, chunks, call.m)
        inputs = (call.X, call.x, None, h, dh)
        nothing = (None,) * 5
        _sweep(sweeps.backward, call, plan, chunks, (*inputs, *nothing, ends, call.mask))
        state = _joined(call, plan, chunks, ends, state, adjoint=True)
    lags = None if lags is None else lags.contiguous()
    tensors = (call.X, call.x, call.h0, h, dh, state, dX, dx, dh0, lags, None, call.mask)
    _sweep(sweeps.backward, call, plan, chunks, tensors)
    return dX, dx, dh0


def _tiles(call: ScanCall, plan: Plan) -> int:
    """Number of tiles that cover all rows of a step."""
    rows = next_power_of_2(call.recurrence.rows(call.m))
    return -(-call.x.shape[2] * rows // plan.lanes)


def _constants(call: ScanCall, plan: Plan) -> dict[str, object]:
    """The compile-time constants of a sweep."""
    return {
        "M": call.m,
        "BLOCK": call.recurrence.is_block,
        "GATE": call.gate,
        "REVERSE": call.reverse,
        "LANES": plan.lanes,
    }


def _sweep(
    kernel, call: ScanCall, plan: Plan, chunks: Chunks | None, tensors: tuple[Tensor | None, ...]
) -> None:
    """Launch `forward` or `backward`, with one warp for each tile of each chunk or sequence."""
    parts = Chunks(call.count, 1, None, None) if chunks is None else chunks
    places = (call.cu_seqlens, parts.owner, parts.first)
    tiles = _tiles(call, plan)
    sizes = (call.x.shape[1], plan.chunk, parts.per, call.x.shape[2], tiles)
    chosen = {"CHUNKED": chunks is not None, "STEPS": plan.steps}
    kernel[(parts.count * tiles,)](
        *tensors, *places, *sizes, **_constants(call, plan), **chosen, **OPTIONS
    )


def _summarised(call: ScanCall, plan: Plan, chunks: Chunks, columns: int) -> Tensor:
    """The map of each chunk (chunks, m + 1, n, m): m columns of P, and e if `columns` exceeds m."""
    n = call.x.shape[2]
    tiles = _tiles(call, plan)
    together = min(columns, plan.together)
    ends = call.x.new_empty((chunks.count, call.m + 1, n, call.m), dtype=torch.float32)
    sizes = (call.x.shape[1], plan.chunk, chunks.per, n, tiles)
    grid = (chunks.count * tiles, -(-columns // together))
    tensors = (call.X, call.x, ends, call.mask, call.cu_seqlens, chunks.owner, chunks.first)
    sweeps.summarise[grid](
        *tensors, *sizes, **_constants(call, plan), COUNT=columns, TOGETHER=together, **OPTIONS
    )
    return ends


def _joined(
    call: ScanCall,
    plan: Plan,
    chunks: Chunks,
    ends: Tensor,
    h0: Tensor | None,
    *,
    adjoint: bool,
) -> Tensor:
    """The initial state of each chunk (chunks, n, m)."""
    n = call.x.shape[2]
    width = next_power_of_2(call.m)
    entries = call.x.new_zeros((chunks.count, n, call.m), dtype=torch.float32)
    lanes = max(plan.lanes, width)
    tiles = -(-n * width // lanes)
    sizes = (chunks.per, n, tiles)
    sweeps.join[(call.count * tiles,)](
        ends, h0, entries, chunks.first, *sizes, M=call.m, ADJOINT=adjoint, LANES=lanes, **OPTIONS
    )
    return entries
