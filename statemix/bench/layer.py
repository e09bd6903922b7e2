"""A BD-LRU, its projections alone, and torch's recurrent layers of the same width; and an H-LRU.

SLiCE, the block-diagonal recurrence of torch-slices, takes part if the package is installed, and an
H-LRU whose scan is that of torchlpc competes with ours.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from statemix.bench.measure import Contest
from statemix.bench.packages import LPCHLRU
from statemix.bench.rivals import SIZES, Entrant, available
from statemix.layers import BDLRU, HLRU
from statemix.layers.weights import project

__all__ = ["layer_contests"]


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


def layer_contests(sizes: SIZES, threads: int, *, bf16: bool) -> Iterator[Contest]:
    """Forward and backward of each, relative to BDLRU and to HLRU; with `bf16`, under autocast."""
    B, T, n, m = sizes
    d = n * m
    named = available(("torch-slices", "torchlpc"))
    modules: dict[str, nn.Module] = {
        "BDLRU": BDLRU(d, n, m),
        "BDLRU save_memory": BDLRU(d, n, m, save_memory=True),
        "its projections, nn.Linear": _Projections(n, m, lambda W, x: W(x)),
        "its projections, faster library": _Projections(n, m, project),
        "nn.LSTM": nn.LSTM(d, d, batch_first=True),
        "nn.GRU": nn.GRU(d, d, batch_first=True),
    }
    if "torch-slices" in named:
        from slices import SLiCE

        modules["torch-slices"] = SLiCE(d, d, block_size=m)
    setting = f"d = {d}, n = {n}, m = {m}, B = {B}, T = {T}" + ", bf16" * bf16
    yield _contest(setting, "BDLRU", modules, sizes, threads, bf16)
    if "torchlpc" in named:
        modules = {"HLRU": HLRU(d, n, m), "HLRU on torchlpc": LPCHLRU(d, n, m)}
        yield _contest(f"H-LRU, {setting}", "HLRU", modules, sizes, threads, bf16)


def _contest(
    setting: str,
    reference: str,
    modules: dict[str, nn.Module],
    sizes: SIZES,
    threads: int,
    bf16: bool,
) -> Contest:
    """Forward and backward of the modules, from the same inputs and gradients."""
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

    entrants = {name: differentiated(module) for name, module in modules.items()}
    return Contest("layer", setting, reference, entrants, threads)
