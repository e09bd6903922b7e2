"""Hard gates against soft ones: the same scans and layers with both gate functions."""

from collections.abc import Iterator

import torch

from statemix.bench.measure import Contest
from statemix.bench.rivals import SIZES, Entrant, differentiated, inputs
from statemix.layers import BDLRU
from statemix.ops import gated_block_scan

__all__ = ["gates_contests"]

_GATES = ("softmax", "hardmax")


def gates_contests(sizes: SIZES) -> Iterator[Contest]:
    """Scans, forward alone and with the backward pass, and layers, relative to softmax."""
    setting = f"(B, T, n, m) = {sizes}"
    for name, make in (
        ("scan, forward", _forward),
        ("scan, forward and backward", _both),
        ("BDLRU, forward and backward", _layer),
    ):
        entrants = {gate: make(gate, sizes) for gate in _GATES}
        yield Contest("gates", f"{name}, {setting}", _GATES[0], entrants)


def _forward(gate: str, sizes: SIZES) -> Entrant:
    gates, v = (x.detach() for x in inputs(sizes))
    return lambda: gated_block_scan(gates, v, gate=gate)


def _both(gate: str, sizes: SIZES) -> Entrant:
    return differentiated(lambda gates, v: gated_block_scan(gates, v, gate=gate)[0], sizes)


def _layer(gate: str, sizes: SIZES) -> Entrant:
    B, T, n, m = sizes
    torch.manual_seed(0)
    layer = BDLRU(n * m, n, m, gate=gate)
    x = torch.randn(B, T, n * m, requires_grad=True)
    weight = torch.randn(B, T, n * m)
    return lambda: torch.autograd.grad(layer(x)[0], (x, *layer.parameters()), weight)
