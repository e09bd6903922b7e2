"""How exact: float32 kernels and plain float32 torch, both against float64.

An error is the norm of the difference over the norm of the truth.  A saturated permutation, which only moves states about, has to be exact.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.bench.measure import Row
from statemix.bench.rivals import by_loop
from statemix.ops import gated_block_scan, gated_companion_scan

Scan = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
SATURATED = 200.0  # a gate so far above the others that they are zero in float32


@dataclass(frozen=True)
class ErrorConfig:
    """Sizes to compare at, and how long to permute."""

    batch: int
    length: int
    blocks: int
    block_sizes: tuple[int, ...]
    permutation_length: int


def differentiate(scan: Scan, gates: Tensor, v: Tensor) -> dict[str, Tensor]:
    """Outputs and gradients of `scan`, in float64."""
    leaves = gates.clone().requires_grad_(), v.clone().requires_grad_()
    h, _ = scan(*leaves)
    weight = torch.linspace(-1, 1, h.numel(), dtype=h.dtype).view(h.shape)
    d_gates, d_v = torch.autograd.grad((h * weight).sum(), leaves)
    return {"h": h.detach().double(), "dgates": d_gates.double(), "dv": d_v.double()}


def plain_block(gates: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of `gated_block_scan`, in torch alone."""
    h = by_loop(gates, v)
    return h, h[:, -1]


def plain_companion(gates: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of `gated_companion_scan`, in torch alone."""
    w = torch.softmax(gates, -1)
    s, outputs = torch.zeros_like(w[:, 0, :, :-1]), []
    for w_t, b_t in zip(w[..., :-1].unbind(1), (w[..., -1] * v).unbind(1), strict=True):
        outputs.append((w_t * s).sum(-1) + b_t)
        s = torch.cat([outputs[-1].unsqueeze(-1), s[..., :-1]], -1)
    return torch.stack(outputs, 1), s


SCANS: dict[str, tuple[Scan, Scan]] = {
    "gated_block_scan": (gated_block_scan, plain_block),
    "gated_companion_scan": (gated_companion_scan, plain_companion),
}


def compare(name: str, config: ErrorConfig, m: int) -> list[Row]:
    """Errors of our float32 scan and of torch's, at one size."""
    generator = torch.Generator().manual_seed(m)
    shape = (
        config.batch,
        config.length,
        config.blocks,
        *([m] if name == "gated_block_scan" else []),
    )
    gates, v = (
        2 * torch.randn(*shape, m + 1, generator=generator),
        torch.randn(shape, generator=generator),
    )
    ours, plain = SCANS[name]
    truth = differentiate(plain, gates.double(), v.double())
    kernel, torch_ = differentiate(ours, gates, v), differentiate(plain, gates, v)
    rows = []
    for quantity, exact in truth.items():
        errors = {
            "statemix": relative(kernel[quantity], exact),
            "plain torch": relative(torch_[quantity], exact),
        }
        for entrant, error in errors.items():
            ratio = error / errors["plain torch"]
            rows.append(
                Row(
                    "error",
                    f"{name} m = {m}, {quantity}",
                    entrant,
                    1,
                    error,
                    "relative error",
                    "plain torch",
                    ratio,
                    1,
                )
            )
    return rows


def relative(x: Tensor, truth: Tensor) -> float:
    return ((x - truth).norm() / truth.norm()).item()


def permutation_row(config: ErrorConfig) -> Row:
    """The largest deviation of a random state under thousands of saturated permutations."""
    T, m = config.permutation_length, 5
    generator = torch.Generator().manual_seed(0)
    gates, h = (
        torch.full((1, T, 8, m, m + 1), -SATURATED),
        torch.randn(1, 8, m, generator=generator),
    )
    expected, state = [], h
    for t in range(T):
        order = torch.randperm(m, generator=generator)
        gates[0, t, :, torch.arange(m), order] = SATURATED
        state = state[..., order]
        expected.append(state)
    ours, _ = gated_block_scan(gates, torch.randn(1, T, 8, m, generator=generator), h)
    deviation = (ours - torch.stack(expected, 1)).abs().max().item()
    return Row(
        "error",
        f"{T} saturated permutations, m = {m}",
        "statemix",
        1,
        deviation,
        "largest deviation",
        "exact",
        deviation,
        1,
    )


def compare_all(config: ErrorConfig, observe: Callable[[str], None]) -> list[Row]:
    """Errors of both scans at every size; `observe` receives the name of each comparison."""
    rows: list[Row] = []
    for name in SCANS:
        for m in config.block_sizes:
            observe(f"{name} m = {m}")
            rows += compare(name, config, m)
    return rows
