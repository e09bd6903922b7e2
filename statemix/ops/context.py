"""One sequence over several ranks: the scans of this package, each rank holding a stretch of time.

Rank r holds the steps `part(T, r, R)` of a sequence.  What its steps do to the state that enters them is affine,

    h_out = P_r h_in + e_r,    P_r = A[last] ··· A[first],    e_r = the final state of a scan from zero,

so one exchange of (P, e) tells every rank the state that enters its own part, and it scans from there.  With k the gradient
of the loss with respect to a state, and q_r what the outputs of rank r alone pass back to the state that entered it,

    k_in = P_rᵀ k_out + q_r,

so the backward pass exchanges q, and each rank runs its own adjoint from the k that leaves its part.

Initial and final states are the whole sequence's, the same on every rank.  Gradients of what ranks have in common, weights and
initial states, are each rank's share: their sum over ranks is the gradient of the sum of the ranks' losses.  Every rank takes part
in both exchanges, also where it has no steps, so every rank must call the scan, and the backward pass through its outputs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from statemix.ops import block, check, companion, gated
from statemix.ops.block import matvec, state_or_zero
from statemix.ops.dispatch.registry import Gradients, Pair, Scan, cast_each
from statemix.ops.lags import companion_matrix, first_entry, lagged
from statemix.ops.normalise import NORMALISERS, find_normaliser
from statemix.ops.precision import output_dtype, state_dtype
from statemix.ops.segments import Sequences, zero_where_masked

Group = dist.ProcessGroup


def part(T: int, rank: int, size: int) -> slice:
    """The steps of rank `rank` when `size` ranks share T of them: lengths differ by one at most, the first ranks have more."""
    length, longer = divmod(T, size)
    start = rank * length + min(rank, longer)
    return slice(start, start + length + (rank < longer))


def own_part(x: Tensor, group: Group) -> Tensor:
    """What this rank holds of `x`, whose axis 1 is time."""
    return x[:, part(x.shape[1], group.rank(), group.size())]


def block_scan(
    A: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: Group,
    cu_seqlens: Tensor | None = None,
    mask: Tensor | None = None,
    reverse: bool = False,
) -> Pair:
    """Scan as `statemix.block_scan` does, over the ranks of `group`: own parts of A, b, mask and h, bounds and states of the whole."""
    sequences = own_sequences(b, group, cu_seqlens, mask, reverse)
    check.check_block_scan("A", A, "b", b, initial_state, sequences)
    h, final, _ = exchange(plain(block.SCAN, sequences), group, A, b, initial_state)
    return h, final


def companion_scan(
    a: Tensor,
    b: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: Group,
    cu_seqlens: Tensor | None = None,
    mask: Tensor | None = None,
    reverse: bool = False,
) -> Pair:
    """Scan as `statemix.companion_scan` does, over the ranks of `group`."""
    sequences = own_sequences(b, group, cu_seqlens, mask, reverse)
    check.check_companion_scan("a", a, "b", b, initial_state, sequences)
    h, final, _ = exchange(plain(companion.SCAN, sequences), group, a, b, initial_state)
    return h, final


def gated_block_scan(
    gates: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: Group,
    gate: str = "softmax",
    cu_seqlens: Tensor | None = None,
    mask: Tensor | None = None,
    reverse: bool = False,
) -> Pair:
    """Scan as `statemix.gated_block_scan` does, over the ranks of `group`."""
    sequences = own_sequences(v, group, cu_seqlens, mask, reverse)
    check.check_block_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    h, final, _ = exchange(with_gates(gated.BLOCK, sequences, gate), group, gates, v, initial_state)
    return h, final


def gated_companion_scan(
    gates: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: Group,
    gate: str = "softmax",
    cu_seqlens: Tensor | None = None,
    mask: Tensor | None = None,
    reverse: bool = False,
) -> Pair:
    """Scan as `statemix.gated_companion_scan` does, over the ranks of `group`."""
    sequences = own_sequences(v, group, cu_seqlens, mask, reverse)
    check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    h, final, _ = exchange(
        with_gates(gated.COMPANION, sequences, gate), group, gates, v, initial_state
    )
    return h, final


def expanded_companion_scan(
    gates: Tensor,
    v: Tensor,
    initial_state: Tensor | None = None,
    *,
    group: Group,
    gate: str = "softmax",
    form: str = "controller",
    cu_seqlens: Tensor | None = None,
    mask: Tensor | None = None,
    reverse: bool = False,
) -> Pair:
    """Scan as `statemix.ops.expanded_companion_scan` does, over the ranks of `group`: lags reach into the rank before."""
    check.check_choice("form", form, companion.FORMS)
    sequences = own_sequences(v, group, cu_seqlens, mask, reverse)
    check.check_companion_scan("gates", gates, "v", v, initial_state, sequences, input_gates=1)
    check.check_choice("gate function", gate, NORMALISERS)
    if form == "observer":
        w = find_normaliser(gate).forward(zero_where_masked(gates.to(state_dtype(gates, v)), mask))
        A, b = (
            companion_matrix(w[..., :-1]).mT,
            first_entry(w[..., -1] * zero_where_masked(v, mask), w.shape[-1] - 1),
        )
        s, final, _ = exchange(plain(block.SCAN, sequences), group, A, b, initial_state)
        return s.to(output_dtype(gates, v)), final
    h, final, enter = exchange(
        with_gates(gated.COMPANION, sequences, gate), group, gates, v, initial_state
    )
    return lagged(h, enter.to(h.dtype), sequences), final


def own_sequences(
    x: Tensor, group: Group, cu_seqlens: Tensor | None, mask: Tensor | None, reverse: bool
) -> Sequences:
    """What of each sequence falls into this rank's part; those that lie elsewhere are empty here, and hand their state on."""
    if cu_seqlens is None:
        return Sequences(None, mask, reverse)
    check.check_cu_seqlens(cu_seqlens, x.shape[0])
    T = int(cu_seqlens[-1])
    steps = part(T, group.rank(), group.size())
    if x.shape[1] != steps.stop - steps.start:
        raise ValueError(
            f"Rank {group.rank()} of {group.size()} must hold the steps {steps.start} .. {steps.stop - 1} of the {T} that `cu_seqlens` "
            f"bounds, {steps.stop - steps.start} of them, got {x.shape[1]}. Take `own_part` of the whole, and whole bounds."
        )
    return Sequences(cu_seqlens.clamp(steps.start, steps.stop) - steps.start, mask, reverse)


@dataclass(frozen=True)
class OwnScan:
    """A scan of this rank's part: (X, x, h0) to (h, final), and its adjoint from (dh, dh_final, X, x, h, h0)."""

    forward: Callable[[Tensor, Tensor, Tensor], Pair]
    backward: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], Gradients]
    sequences: Sequences
    input_gates: int

    def start(self, X: Tensor, x: Tensor, h0: Tensor | None) -> Tensor:
        """The state before the whole sequence."""
        return state_or_zero(
            h0, x, X.shape[-1] - self.input_gates, state_dtype(X, x), self.sequences
        )


def plain(scan: Scan, sequences: Sequences) -> OwnScan:
    return OwnScan(
        lambda X, x, h0: scan(X, x, h0, sequences),
        lambda dh, dh_final, X, x, h, h0: scan.backward(dh, dh_final, X, h, h0, sequences),
        sequences,
        input_gates=0,
    )


def with_gates(scan: gated.GatedScan, sequences: Sequences, gate: str) -> OwnScan:
    return OwnScan(
        lambda gates, v, h0: scan(gates, v, h0, sequences, gate),
        lambda dh, dh_final, gates, v, h, h0: scan.backward(
            dh, dh_final, gates, v, h, h0, sequences, gate
        ),
        sequences,
        input_gates=1,
    )


@torch.compiler.disable
def exchange(
    scan: OwnScan, group: Group, X: Tensor, x: Tensor, h0: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(h of this part, final state of the whole, the state that enters this part)."""
    return _Exchange.apply(scan, group, X, x, h0)


class _Exchange(torch.autograd.Function):
    """The equations at the top of this file; ranks are counted in the order in which time passes them."""

    @staticmethod
    def forward(ctx, scan, group, X, x, h0):
        state = scan.start(X, x, h0)
        P, e = transition(scan, X, x, state)
        everyone = gather(torch.cat([P, e.unsqueeze(-1)], -1), group, scan.sequences.reverse)
        position = place(group, scan.sequences.reverse)
        for r, (P_r, e_r) in enumerate((each[..., :-1], each[..., -1]) for each in everyone):
            if r == position:
                enter = state
            state = matvec(P_r, state) + e_r
        h, _ = scan.forward(X, x, enter)
        ctx.scan, ctx.group, ctx.dtypes = (
            scan,
            group,
            (X.dtype, x.dtype, None if h0 is None else h0.dtype),
        )
        ctx.save_for_backward(X, x, h, enter, torch.stack(everyone)[..., :-1])
        return h, state, enter.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx, dh, dfinal, denter):
        (X, x, h, enter, P), scan = ctx.saved_tensors, ctx.scan
        q = scan.backward(dh, torch.zeros_like(enter), X, x, h, enter)[2] + denter
        everyone = gather(torch.stack([q, dfinal]), ctx.group, scan.sequences.reverse)
        position = place(ctx.group, scan.sequences.reverse)
        k = torch.stack([dfinal_r for _, dfinal_r in everyone]).sum(0)
        for r in range(len(everyone) - 1, position, -1):
            k = matvec(P[r].mT, k) + everyone[r][0]
        dX, dx, dh_in = scan.backward(dh, k, X, x, h, enter)
        dh0 = dh_in + denter if position == 0 else torch.zeros_like(enter)
        return None, None, *cast_each((dX, dx, dh0), list(ctx.dtypes))


def transition(scan: OwnScan, X: Tensor, x: Tensor, like: Tensor) -> Pair:
    """P and e of this part: where it takes each unit vector without a driver, and zero with it."""
    nothing, columns = torch.zeros_like(x), []
    for j in range(like.shape[-1]):
        unit = torch.zeros_like(like)
        unit[..., j] = 1
        columns.append(scan.forward(X, nothing, unit)[1])
    return torch.stack(columns, -1), scan.forward(X, x, torch.zeros_like(like))[1]


def place(group: Group, reverse: bool) -> int:
    """How many ranks time passes before this one."""
    return group.size() - 1 - group.rank() if reverse else group.rank()


def gather(x: Tensor, group: Group, reverse: bool) -> list[Tensor]:
    """`x` of every rank, in the order in which time passes them."""
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x.contiguous(), group=group)
    return parts[::-1] if reverse else parts
