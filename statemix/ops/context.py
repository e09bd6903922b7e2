"""Context parallelism: the scans of this package over sequences that are split across ranks.

Rank r holds the steps `part(T, r, R)` of a sequence. The map from the state before its steps to the
state after them is affine,

    h_out = P_r h_in + e_r,    P_r = A[last] ··· A[first],    e_r = final state of a scan from zero,

so an all-gather of (P, e) gives every rank its initial state, from which it runs its own scan. With
k the gradient of the loss with respect to a state, and q_r the gradient with respect to h_in
through the outputs of rank r only,

    k_in = P_rᵀ k_out + q_r,

so the backward pass gathers q, and each rank runs its own adjoint from its k_out.

Initial and final states belong to the full sequence and are equal on all ranks. Each rank computes
only its share of the gradients of shared inputs (weights and initial states): the sum over ranks is
the gradient of the sum of the ranks' losses. All ranks take part in both collectives, even without
any steps, so every rank must call the scan and the backward pass through its outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from statemix.ops import block, check, companion, gated
from statemix.ops.block import matvec, state_or_zero
from statemix.ops.dispatch.registry import Gradients, Pair, Scan, cast_each
from statemix.ops.lags import companion_matrix, first_entry, lagged
from statemix.ops.normalise import NORMALISERS, find_normaliser
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences, zero_where_masked
from statemix.types import (
    BlockGates,
    BlockMatrices,
    BlockValues,
    ChannelGates,
    ChannelValues,
    Coefficients,
    Mask,
    SequenceBounds,
    States,
)

__all__ = [
    "block_scan",
    "companion_scan",
    "expanded_companion_scan",
    "gated_block_scan",
    "gated_companion_scan",
    "own_part",
    "part",
]


def part(T: int, rank: int, size: int) -> slice:
    """The steps of one rank if `size` ranks share T; the first T % size ranks have one more."""
    length, longer = divmod(T, size)
    start = rank * length + min(rank, longer)
    return slice(start, start + length + (rank < longer))


def own_part(
    x: Shaped[Tensor, "B T *rest"], group: ProcessGroup
) -> Shaped[Tensor, "B T_own *rest"]:
    """The steps of `x` that belong to this rank."""
    return x[:, part(x.shape[1], group.rank(), group.size())]


def block_scan(
    A: BlockMatrices,
    b: BlockValues,
    initial_state: States | None = None,
    *,
    group: ProcessGroup,
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Run `statemix.block_scan` over the ranks of `group`.

    A, b, mask and h are this rank's steps; `cu_seqlens` and the states are those of all steps.
    """
    sequences = _own_sequences(b, group, cu_seqlens, mask, reverse)
    check.check_block_scan("A", A, "b", b, initial_state, sequences)
    return _exchange(_plain(block.SCAN, sequences), group, A, b, initial_state)[:2]


def companion_scan(
    a: Coefficients,
    b: ChannelValues,
    initial_state: States | None = None,
    *,
    group: ProcessGroup,
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[ChannelValues, States]:
    """Run `statemix.companion_scan` over the ranks of `group`."""
    sequences = _own_sequences(b, group, cu_seqlens, mask, reverse)
    check.check_companion_scan("a", a, "b", b, initial_state, sequences)
    return _exchange(_plain(companion.SCAN, sequences), group, a, b, initial_state)[:2]


def gated_block_scan(
    gates: BlockGates,
    v: BlockValues,
    initial_state: States | None = None,
    *,
    group: ProcessGroup,
    gate: str = "softmax",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[BlockValues, States]:
    """Run `statemix.gated_block_scan` over the ranks of `group`."""
    sequences = _own_sequences(v, group, cu_seqlens, mask, reverse)
    check.check_block_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    scan = _with_gates(gated.BLOCK, sequences, gate)
    return _exchange(scan, group, gates, v, initial_state)[:2]


def gated_companion_scan(
    gates: ChannelGates,
    v: ChannelValues,
    initial_state: States | None = None,
    *,
    group: ProcessGroup,
    gate: str = "softmax",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[ChannelValues, States]:
    """Run `statemix.gated_companion_scan` over the ranks of `group`."""
    sequences = _own_sequences(v, group, cu_seqlens, mask, reverse)
    check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    scan = _with_gates(gated.COMPANION, sequences, gate)
    return _exchange(scan, group, gates, v, initial_state)[:2]


def expanded_companion_scan(
    gates: ChannelGates,
    v: ChannelValues,
    initial_state: States | None = None,
    *,
    group: ProcessGroup,
    gate: str = "softmax",
    form: str = "controller",
    cu_seqlens: SequenceBounds | None = None,
    mask: Mask | None = None,
    reverse: bool = False,
) -> tuple[Coefficients, States]:
    """Run `statemix.ops.expanded_companion_scan` over the ranks of `group`."""
    check.check_choice("form", form, companion.FORMS)
    sequences = _own_sequences(v, group, cu_seqlens, mask, reverse)
    check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    if form == "observer":
        w = find_normaliser(gate).forward(zero_where_masked(gates.to(state_dtype(gates, v)), mask))
        A = companion_matrix(w[..., :-1]).mT
        b = first_entry(w[..., -1] * zero_where_masked(v, mask), w.shape[-1] - 1)
        s, final, _ = _exchange(_plain(block.SCAN, sequences), group, A, b, initial_state)
        return s.to(output_dtype(gates, v)), final
    scan = _with_gates(gated.COMPANION, sequences, gate)
    h, final, enter = _exchange(scan, group, gates, v, initial_state)
    return lagged(h, enter.to(h.dtype), sequences), final


def _own_sequences(
    x: Tensor, group: ProcessGroup, cu_seqlens: Tensor | None, mask: Tensor | None, reverse: bool
) -> Sequences:
    """This rank's steps of each sequence; a sequence without any passes its state on unchanged."""
    if cu_seqlens is None:
        return Sequences(None, mask, reverse)
    check.check_cu_seqlens(cu_seqlens, x.shape[0])
    T = int(cu_seqlens[-1])
    steps = part(T, group.rank(), group.size())
    if x.shape[1] != steps.stop - steps.start:
        raise ValueError(
            f"Rank {group.rank()} of {group.size()} must hold the steps "
            f"{steps.start} .. {steps.stop - 1} of the {T} steps in `cu_seqlens`: expected "
            f"{steps.stop - steps.start} steps, got {x.shape[1]}. "
            "Pass `own_part` of the full tensors, and the full `cu_seqlens`."
        )
    return Sequences(cu_seqlens.clamp(steps.start, steps.stop) - steps.start, mask, reverse)


@dataclass(frozen=True)
class _OwnScan:
    """A scan of this rank's steps.

    h, final = forward(X, x, h0)
    dX, dx, dh0 = backward(dh, dh_final, X, x, h, h0)
    """

    forward: Callable[[Tensor, Tensor, Tensor], Pair]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]
    sequences: Sequences
    input_gates: int

    def start(self, X: Tensor, x: Tensor, h0: Tensor | None) -> Tensor:
        """The initial state of the full sequence."""
        m = X.shape[-1] - self.input_gates
        return state_or_zero(h0, x, m, state_dtype(X, x), self.sequences)


def _plain(scan: Scan, sequences: Sequences) -> _OwnScan:
    return _OwnScan(
        lambda X, x, h0: scan(X, x, h0, sequences),
        lambda dh, dh_final, X, x, h, h0: scan.backward(dh, dh_final, X, h, h0, sequences),
        sequences,
        input_gates=0,
    )


def _with_gates(scan: gated.GatedScan, sequences: Sequences, gate: str) -> _OwnScan:
    return _OwnScan(
        lambda gates, v, h0: scan(gates, v, h0, sequences, gate),
        lambda dh, dh_final, gates, v, h, h0: scan.backward(
            dh, dh_final, gates, v, h, h0, sequences, gate
        ),
        sequences,
        input_gates=1,
    )


@torch.compiler.disable
def _exchange(
    scan: _OwnScan, group: ProcessGroup, X: Tensor, x: Tensor, h0: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(h of this rank, the final state of the full sequence, the initial state of this rank)."""
    return _Exchange.apply(scan, group, X, x, h0)


class _Exchange(torch.autograd.Function):
    """The equations at the top of this file; r counts ranks in the order of the scan."""

    @staticmethod
    def forward(ctx, scan, group, X, x, h0):
        state = scan.start(X, x, h0)
        P, e = _transition(scan, X, x, state)
        everyone = _gather(torch.cat([P, e.unsqueeze(-1)], -1), group, scan.sequences.reverse)
        position = _position(group, scan.sequences.reverse)
        for r, (P_r, e_r) in enumerate((each[..., :-1], each[..., -1]) for each in everyone):
            if r == position:
                enter = state
            state = matvec(P_r, state) + e_r
        h, _ = scan.forward(X, x, enter)
        ctx.scan = scan
        ctx.group = group
        ctx.dtypes = [None if y is None else y.dtype for y in (X, x, h0)]
        ctx.save_for_backward(X, x, h, enter, torch.stack(everyone)[..., :-1])
        return h, state, enter.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dfinal, denter):
        X, x, h, enter, P = ctx.saved_tensors
        scan = ctx.scan
        q = scan.backward(dh, torch.zeros_like(enter), X, x, h, enter)[2] + denter
        everyone = _gather(torch.stack([q, dfinal]), ctx.group, scan.sequences.reverse)
        position = _position(ctx.group, scan.sequences.reverse)
        k = torch.stack([dfinal_r for _, dfinal_r in everyone]).sum(0)
        for r in range(len(everyone) - 1, position, -1):
            k = matvec(P[r].mT, k) + everyone[r][0]
        dX, dx, dh_in = scan.backward(dh, k, X, x, h, enter)
        dh0 = dh_in + denter if position == 0 else torch.zeros_like(enter)
        return None, None, *cast_each((dX, dx, dh0), ctx.dtypes)


def _transition(scan: _OwnScan, X: Tensor, x: Tensor, like: Tensor) -> Pair:
    """P, the final states from unit vectors without a driver, and e, that from zero with it."""
    nothing = torch.zeros_like(x)
    columns = []
    for j in range(like.shape[-1]):
        unit = torch.zeros_like(like)
        unit[..., j] = 1
        columns.append(scan.forward(X, nothing, unit)[1])
    return torch.stack(columns, -1), scan.forward(X, x, torch.zeros_like(like))[1]


def _position(group: ProcessGroup, reverse: bool) -> int:
    """The number of ranks whose steps come before those of this rank in the order of the scan."""
    return group.size() - 1 - group.rank() if reverse else group.rank()


def _gather(x: Tensor, group: ProcessGroup, reverse: bool) -> list[Tensor]:
    """`x` of every rank, in the order of the scan."""
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts[::-1] if reverse else parts
