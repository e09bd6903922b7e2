"""All scans of the library with one signature, so that one test covers all of them."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from oracle import loop_block, loop_companion, loop_observer, loop_observer_states, loop_states
from torch import Tensor

from statemix.ops import (
    NORMALISERS,
    block_scan,
    companion_scan,
    expanded_companion_scan,
    gated_block_scan,
    gated_companion_scan,
    hop_scan,
    normalise,
)

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Case:
    """A scan, its definition as a loop, and the shapes of its inputs."""

    name: str
    scan: Callable[..., Pair]
    loop: Callable[[Tensor, Tensor, Tensor], Pair]
    block: bool
    gated: bool
    expanded: bool = False  # the driver is (B, T, n), the outputs are full states (B, T, n, m)

    def inputs(
        self,
        B: int,
        T: int,
        n: int,
        m: int,
        *,
        S: int | None = None,
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ):
        """Draw random (X, x, h0), where X holds contracting matrices or raw gates."""
        draw = partial(
            torch.randn, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
        )
        driver = (B, T, n, m) if self.block else (B, T, n)
        X = 2 * draw(*driver, m + 1) if self.gated else draw(*driver, m) / m
        return [y.to(dtype) for y in (X, draw(*driver), draw(B if S is None else S, n, m))]

    @property
    def is_hardmax(self) -> bool:
        """True for hardmax, whose gradient is an estimate and not a derivative."""
        return "hardmax" in self.name

    def output_like(self, X: Tensor, x: Tensor) -> Tensor:
        """Return a tensor with the shape of the outputs."""
        return (
            x.unsqueeze(-1).expand(*x.shape, X.shape[-1] - 1).contiguous() if self.expanded else x
        )

    def __str__(self) -> str:
        return self.name


def straight_through(gates: Tensor) -> Tensor:
    """Hardmax: the first of the largest gates weighs one; the gradient is that of softmax."""
    soft = gates.softmax(-1)
    largest = gates == gates.amax(-1, keepdim=True)
    hard = largest & (largest.cumsum(-1) == 1)
    return hard.to(gates.dtype) + (soft - soft.detach())


def gated_loop(
    loop: Callable[[Tensor, Tensor, Tensor], Pair], gate: str
) -> Callable[[Tensor, Tensor, Tensor], Pair]:
    def run(gates: Tensor, v: Tensor, h0: Tensor) -> Pair:
        w = straight_through(gates) if gate == "hardmax" else normalise(gates, gate)
        return loop(w[..., :-1], w[..., -1] * v, h0)

    return run


PLAIN = [
    Case("block_scan", block_scan, loop_block, block=True, gated=False),
    Case("hop_scan", hop_scan, loop_block, block=True, gated=False),
    Case("companion_scan", companion_scan, loop_companion, block=False, gated=False),
    Case(
        "companion_scan[observer]",
        partial(companion_scan, form="observer"),
        loop_observer,
        block=False,
        gated=False,
    ),
]
GATED_BLOCK = [
    Case(
        f"gated_block_scan[{gate}]",
        partial(gated_block_scan, gate=gate),
        gated_loop(loop_block, gate),
        block=True,
        gated=True,
    )
    for gate in NORMALISERS
]
GATED_COMPANION = [
    Case(
        f"gated_companion_scan[{gate}]",
        partial(gated_companion_scan, gate=gate),
        gated_loop(loop_companion, gate),
        block=False,
        gated=True,
    )
    for gate in NORMALISERS
]
EXPANDED = [
    Case(
        "expanded_companion_scan",
        expanded_companion_scan,
        gated_loop(loop_states, "softmax"),
        block=False,
        gated=True,
        expanded=True,
    ),
    Case(
        "expanded_companion_scan[observer]",
        partial(expanded_companion_scan, form="observer"),
        gated_loop(loop_observer_states, "softmax"),
        block=False,
        gated=True,
        expanded=True,
    ),
]
CASES = [*PLAIN, *GATED_BLOCK, *GATED_COMPANION, *EXPANDED]
EACH_SCAN = [*PLAIN, GATED_BLOCK[0], GATED_COMPANION[0], *EXPANDED]


def random_mask(B: int, T: int, seed: int) -> Tensor:
    return torch.rand(B, T, generator=torch.Generator().manual_seed(seed)) < 0.6


def bounds(lengths: list[int], dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor([0, *lengths], dtype=dtype).cumsum(0).to(dtype)


def run(scan, inputs, settings, dtype):
    """Run `scan` in `dtype`; return outputs, final states and all gradients as float64."""
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    h, final = scan(*leaves, **settings)
    weights = torch.linspace(-1, 1, h.numel(), dtype=torch.float64).view(h.shape)
    gradients = torch.autograd.grad(
        (h.double() * weights).sum() + final.double().sum(), leaves, materialize_grads=True
    )
    return [y.detach().double() for y in (h, final, *gradients)]
