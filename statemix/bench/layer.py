"""A BD-LRU, its projections alone, and torch's recurrent layers of the same width.

SLiCE, the block-diagonal recurrence of torch-slices, takes part if the package is installed.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from statemix.bench.measure import Contest
from statemix.bench.rivals import SIZES, Entrant
from statemix.layers import BDLRU
from statemix.layers.weights import project

__all__ = ["layer_contest"]


class _Projections(nn.Module):
    """The products W_g x, W_v x and W_o v of a BD-LRU, by nn.Linear or by the faster library."""

    def __init__(self, n: int, m: int, multiply: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        d = n * m
        self.W_g = nn.Linear(d, d * (m + 1), bias=False)
        self.W_v = nn.Linear(d, d, bias=False)
        self.W_o = nn.Linear(d, d, bias=False)
        self.multiply = multiply

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """W_o W_v x, and the gates."""
        return self.multiply(self.W_o, self.multiply(self.W_v, x)), self.multiply(self.W_g, x)


def layer_contest(sizes: SIZES, threads: int, *, bf16: bool) -> Contest:
    """Forward and backward of each, relative to BDLRU; with `bf16`, under autocast."""
    B, T, n, m = sizes
    d = n * m
    x = torch.randn(B, T, d, requires_grad=True)
    weights = [torch.randn(B, T, width) for width in (d, d * (m + 1))]

    def differentiated(module: nn.Module) -> Entrant:
        def call() -> object:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
                outputs = module(x)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            ends = outputs if isinstance(module, _Projections) else outputs[:1]
            gradients = [w.to(y.dtype) for w, y in zip(weights, ends, strict=False)]
            return torch.autograd.grad(ends, (x, *module.parameters()), gradients)

        return call

    entrants = {
        "BDLRU": differentiated(BDLRU(d, n, m)),
        "BDLRU save_memory": differentiated(BDLRU(d, n, m, save_memory=True)),
        "its projections, nn.Linear": differentiated(_Projections(n, m, lambda W, x: W(x))),
        "its projections, faster library": differentiated(_Projections(n, m, project)),
        "nn.LSTM": differentiated(nn.LSTM(d, d, batch_first=True)),
        "nn.GRU": differentiated(nn.GRU(d, d, batch_first=True)),
    }
    if find_spec("slices"):
        from slices import SLiCE

        entrants["torch-slices"] = differentiated(SLiCE(d, d, block_size=m))
    setting = f"d = {d}, n = {n}, m = {m}, B = {B}, T = {T}" + ", bf16" * bf16
    return Contest("layer", setting, "BDLRU", entrants, threads)
