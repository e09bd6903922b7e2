"""Errors of float32 kernels and of plain float32 torch, relative to float64.

An error is the norm of the difference divided by the norm of the float64 result. Saturated gates
that permute the states must be exact.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from statemix.bench.config import ErrorConfig
from statemix.bench.measure import Row
from statemix.bench.rivals import by_loop
from statemix.ops import gated_block_scan, gated_companion_scan

__all__ = ["SCANS", "ErrorConfig", "compare_all", "permutation_row"]

_Scan = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
_SATURATED = 200.0  # so far above the other gates that their softmax is zero in float32


def _differentiate(scan: _Scan, gates: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Outputs and gradients of `scan`, in float64."""
    leaves = gates.clone().requires_grad_(), v.clone().requires_grad_()
    h, _ = scan(*leaves)
    weight = torch.linspace(-1, 1, h.numel(), dtype=h.dtype).view(h.shape)
    d_gates, d_v = torch.autograd.grad((h * weight).sum(), leaves)
    return {"h": h.detach().double(), "dgates": d_gates.double(), "dv": d_v.double()}


def _plain_block(gates: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`gated_block_scan` as a loop in torch."""
    h = by_loop(gates, v)
    return h, h[:, -1]


def _plain_companion(gates: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """`gated_companion_scan` as a loop in torch."""
    w = torch.softmax(gates, -1)
    s = torch.zeros_like(w[:, 0, :, :-1])
    outputs: list[Tensor] = []
    for w_t, b_t in zip(w[..., :-1].unbind(1), (w[..., -1] * v).unbind(1), strict=True):
        outputs.append((w_t * s).sum(-1) + b_t)
        s = torch.cat([outputs[-1].unsqueeze(-1), s[..., :-1]], -1)
    return torch.stack(outputs, 1), s


SCANS: dict[str, tuple[_Scan, _Scan]] = {
    "gated_block_scan": (gated_block_scan, _plain_block),
    "gated_companion_scan": (gated_companion_scan, _plain_companion),
}


def _compare(name: str, config: ErrorConfig, m: int) -> list[Row]:
    """Errors of our float32 scan and of torch's, at one size."""
    generator = torch.Generator().manual_seed(m)
    states = (m,) if name == "gated_block_scan" else ()
    shape = (config.batch, config.length, config.blocks, *states)
    gates = 2 * torch.randn(*shape, m + 1, generator=generator)
    v = torch.randn(shape, generator=generator)
    ours, plain = SCANS[name]
    truth = _differentiate(plain, gates.double(), v.double())
    kernel = _differentiate(ours, gates, v)
    baseline = _differentiate(plain, gates, v)
    rows = []
    for quantity, exact in truth.items():
        setting = f"{name} m = {m}, {quantity}"
        errors = {
            "statemix": _relative(kernel[quantity], exact),
            "plain torch": _relative(baseline[quantity], exact),
        }
        for entrant, error in errors.items():
            ratio = error / errors["plain torch"]
            row = ("error", setting, entrant, 1, error, "relative error", "plain torch", ratio, 1)
            rows.append(Row(*row))
    return rows


def _relative(x: Tensor, truth: Tensor) -> float:
    return ((x - truth).norm() / truth.norm()).item()


def permutation_row(config: ErrorConfig) -> Row:
    """The largest deviation of a random state under thousands of saturated permutations."""
    T = config.permutation_length
    m = 5
    generator = torch.Generator().manual_seed(0)
    gates = torch.full((1, T, 8, m, m + 1), -_SATURATED)
    h0 = torch.randn(1, 8, m, generator=generator)
    state = h0
    expected = []
    for t in range(T):
        order = torch.randperm(m, generator=generator)
        gates[0, t, :, torch.arange(m), order] = _SATURATED
        state = state[..., order]
        expected.append(state)
    ours, _ = gated_block_scan(gates, torch.randn(1, T, 8, m, generator=generator), h0)
    deviation = (ours - torch.stack(expected, 1)).abs().max().item()
    setting = f"{T} saturated permutations, m = {m}"
    unit = "largest deviation"
    return Row("error", setting, "statemix", 1, deviation, unit, "exact", deviation, 1)


def compare_all(config: ErrorConfig, observe: Callable[[str], None]) -> list[Row]:
    """Errors of both scans at every size; `observe` receives the name of each comparison."""
    rows: list[Row] = []
    for name in SCANS:
        for m in config.block_sizes:
            observe(f"{name} m = {m}")
            rows += _compare(name, config, m)
    return rows
