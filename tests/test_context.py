"""A sequence shared by two or four ranks gives the outputs, states and gradients of one process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import attempt, on_ranks
from torch import Tensor, nn

from statemix.layers import BDLRU, HLRU, build_mixer, share_sequences
from statemix.ops import (
    block_scan,
    companion_scan,
    context,
    expanded_companion_scan,
    gated_block_scan,
    gated_companion_scan,
)

SCANS: dict[str, tuple[Callable[..., Any], Callable[..., Any], bool, bool]] = {
    "block": (block_scan, context.block_scan, True, False),
    "companion": (companion_scan, context.companion_scan, False, False),
    "gated block": (gated_block_scan, context.gated_block_scan, True, True),
    "gated companion": (gated_companion_scan, context.gated_companion_scan, False, True),
    "expanded": (expanded_companion_scan, context.expanded_companion_scan, False, True),
    "observer": (
        partial(expanded_companion_scan, form="observer"),
        partial(context.expanded_companion_scan, form="observer"),
        False,
        True,
    ),
}
LENGTHS = {2: (1, 7, 64), 4: (3, 10)}  # some have fewer steps than ranks or do not divide evenly
KINDS = ("plain", "packed", "masked", "reverse")
BOUNDS = {1: (0, 0, 1), 3: (0, 1, 1, 3), 7: (0, 3, 3, 7), 10: (0, 1, 9, 9, 10), 64: (0, 5, 40, 64)}
SCAN_CASES = [
    f"{scan}, {ranks} ranks, T = {T}, {kind}"
    for scan, ranks in product(SCANS, LENGTHS)
    for T in LENGTHS[ranks]
    for kind in KINDS
]
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "bdlru": lambda: BDLRU(6, 2, 3, learn_initial_state=True),
    "hlru": lambda: HLRU(6, 4, 3, learn_initial_state=True),
    "observer": lambda: HLRU(6, 4, 3, form="observer"),
    "pointwise": lambda: BDLRU(6, 2, 3, selectivity="pointwise"),
}
LAYER_CASES = [f"layer {name}, {ranks} ranks" for name in LAYERS for ranks in LENGTHS]


@dataclass(frozen=True)
class Ranks:
    """A process group, with this process's rank and the number of ranks."""

    group: dist.ProcessGroup
    rank: int
    size: int

    def own(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else context.own_part(x, self.group)

    def total(self, x: Tensor) -> Tensor:
        """Sum x over all ranks."""
        x = x.clone()
        dist.all_reduce(x, group=self.group)
        return x


def options(kind: str, B: int, T: int) -> dict[str, Any]:
    if kind == "packed":
        return {"cu_seqlens": torch.tensor(BOUNDS[T])}
    if kind == "masked":
        return {"mask": torch.rand(B, T) > 0.3}
    return {"reverse": True} if kind == "reverse" else {}


def check_scan(ranks: Ranks, name: str, T: int, kind: str) -> None:
    whole_scan, own_scan, block, gated = SCANS[name]
    torch.manual_seed(T)
    B, n, m = 1 if kind == "packed" else 2, 2, 3
    S = len(BOUNDS[T]) - 1 if kind == "packed" else B
    driver = (B, T, n, m) if block else (B, T, n)
    X = 2 * torch.randn(*driver, m + 1).double() if gated else torch.randn(*driver, m).double() / m
    inputs = [X, torch.randn(driver).double(), torch.randn(S, n, m).double()]
    extra = options(kind, B, T)
    leaves = [x.clone().requires_grad_() for x in inputs]
    h, final = whole_scan(*leaves, **extra)
    weights = torch.randn_like(h), torch.randn_like(final)
    expected = torch.autograd.grad((h * weights[0]).sum() + (final * weights[1]).sum(), leaves)

    own = [ranks.own(inputs[0]), ranks.own(inputs[1]), inputs[2]]
    own = [x.clone().requires_grad_() for x in own]
    if "mask" in extra:
        extra["mask"] = ranks.own(extra["mask"])
    h_own, final_own = own_scan(*own, group=ranks.group, **extra)
    torch.testing.assert_close(h_own, ranks.own(h.detach()))
    torch.testing.assert_close(final_own, final.detach())
    # The loss of each rank uses its outputs and a rank-dependent share of the final state.
    share = 2.0 * (ranks.rank + 1) / (ranks.size * (ranks.size + 1))
    loss = (h_own * ranks.own(weights[0])).sum() + share * (final_own * weights[1]).sum()
    dX, dx, dh0 = torch.autograd.grad(loss, own)
    torch.testing.assert_close(dX, ranks.own(expected[0]))
    torch.testing.assert_close(dx, ranks.own(expected[1]))
    torch.testing.assert_close(ranks.total(dh0), expected[2])


def check_layer(ranks: Ranks, name: str) -> None:
    """Compare outputs, states and gradients of plain, chained and packed calls in one graph."""
    torch.manual_seed(0)
    layer = LAYERS[name]().double()
    x = torch.randn(1, 11, 6).double()
    bounds = torch.tensor([0, 4, 11])

    def run(x_own: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        y, _ = layer(x_own)
        z, state = layer(x_own, layer(x_own)[1])
        packed, states = layer(x_own, cu_seqlens=bounds)
        return (
            torch.cat([y, z, packed], -1),
            torch.cat([state, states]),
            [x_own, *layer.parameters()],
        )

    inputs = x.clone().requires_grad_()
    outputs, states, leaves = run(inputs)
    w = torch.randn_like(outputs)
    expected = torch.autograd.grad((outputs * w).sum() + (states**2).sum(), leaves)
    share_sequences(layer, ranks.group)
    own_outputs, own_states, own_leaves = run(ranks.own(x).clone().requires_grad_())
    torch.testing.assert_close(own_outputs, ranks.own(outputs.detach()))
    torch.testing.assert_close(own_states, states.detach())
    got = torch.autograd.grad(
        (own_outputs * ranks.own(w)).sum() + (own_states**2).sum() / ranks.size, own_leaves
    )
    torch.testing.assert_close(got[0], ranks.own(expected[0]))
    for ours, theirs in zip(got[1:], expected[1:], strict=True):
        torch.testing.assert_close(ranks.total(ours), theirs)


def check_bfloat16(ranks: Ranks) -> None:
    """Outputs have the inputs' dtype and states are float32, as in one process."""
    torch.manual_seed(0)
    gates, v = torch.randn(2, 9, 2, 3, 4).bfloat16(), torch.randn(2, 9, 2, 3).bfloat16()
    h, final = gated_block_scan(gates, v)
    own = [ranks.own(y).clone().requires_grad_() for y in (gates, v)]
    h_own, final_own = context.gated_block_scan(*own, group=ranks.group)
    assert (h_own.dtype, final_own.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(h_own, ranks.own(h))
    torch.testing.assert_close(final_own, final)
    h_own.sum().backward()
    assert own[0].grad.dtype == torch.bfloat16


def check_wrong_part(ranks: Ranks) -> None:
    """A rank with a part of the wrong length raises an error before any communication."""
    with pytest.raises(
        ValueError,
        match=rf"Rank {ranks.rank} of {ranks.size} must hold the steps .* of the 8 .* got 3",
    ):
        context.block_scan(
            torch.zeros(1, 3, 1, 2, 2),
            torch.zeros(1, 3, 1, 2),
            group=ranks.group,
            cu_seqlens=torch.tensor([0, 8]),
        )


def work(rank: int, count: int, out: str) -> None:
    pair = dist.new_group([0, 1])
    report = {}
    for size, group in ((2, pair), (4, dist.group.WORLD)):
        if rank >= size:
            continue
        ranks = Ranks(group, rank, size)
        for case in SCAN_CASES:
            name, of, length, kind = case.split(", ")
            if of == f"{size} ranks":
                report[case] = attempt(
                    partial(check_scan, ranks, name, int(length.removeprefix("T = ")), kind)
                )
        for name in LAYERS:
            report[f"layer {name}, {size} ranks"] = attempt(partial(check_layer, ranks, name))
        report[f"bfloat16, {size} ranks"] = attempt(partial(check_bfloat16, ranks))
        report[f"wrong part, {size} ranks"] = attempt(partial(check_wrong_part, ranks))
    with open(f"{out}/{rank}.json", "w") as file:
        json.dump(report, file)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Collect the reports of four ranks, one entry for each case."""
    directory = tmp_path_factory.mktemp("ranks")
    on_ranks(4, work, directory, str(directory))
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in range(4)]


@pytest.mark.parametrize(
    "case",
    [
        *SCAN_CASES,
        *LAYER_CASES,
        *(f"{what}, {size} ranks" for what in ("bfloat16", "wrong part") for size in LENGTHS),
    ],
)
def test_ranks_match_one_process(reports, case):
    found = [report[case] for report in reports if case in report]
    assert len(found) == (2 if "2 ranks" in case else 4)
    assert not any(found), "\n".join(found)


@pytest.mark.parametrize("T", [0, 1, 5, 8])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_parts_cover_time_once(T, size):
    steps = [step for rank in range(size) for step in range(T)[context.part(T, rank, size)]]
    assert steps == list(range(T))


def test_only_linear_recurrent_units_can_share():
    with pytest.raises(ValueError, match=r"across ranks \(context parallelism\), got LSTM"):
        share_sequences(nn.Sequential(BDLRU(4, 2, 2), build_mixer("lstm", 4, {"hidden": 4})), None)
    with pytest.raises(ValueError, match="Linear has no BD-LRU or H-LRU layer"):
        share_sequences(nn.Linear(2, 2), None)
    with pytest.raises(ValueError, match="`save_memory` cannot split"):
        share_sequences(BDLRU(4, 2, 2, save_memory=True), None)
