"""Watch the gates and states of every BD-LRU and H-LRU inside any model.

    with statemix.watch(model) as seen:
        model(x)
    print(seen)

A row of gates w has m weights for states and one for the input, a. With p = |w| / Σ |w|,

    entropy       −Σ p log p / log(m + 1)      0: the row selects one entry, 1: it averages all
    saturation    the share of rows with a p above 0.99
    input share   the mean of a's p
    horizon       −1 / mean log(1 − a's p)     steps after which a state keeps 1/e of its weight

A block is dead if its states never change: their standard deviation over all steps is below a
thousandth of the root mean square of all states of the layer. For an H-LRU a block is a channel.

The gates are computed a second time, from the inputs of each call of `forward`, so that the model
itself runs as it does without being watched.
"""

import math
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from statemix.layers.unit import LinearRecurrentUnit
from statemix.ops.lookup import gather
from statemix.ops.normalise import normalise
from statemix.ops.segments import Sequences, zero_where_masked

__all__ = ["LayerSummary", "Watch", "watch"]

SATURATED = 0.99
DEAD = 1e-3


@dataclass(frozen=True)
class LayerSummary:
    """What one layer did in all calls that were watched; see the module's equations."""

    layer: str
    calls: int
    steps: int
    entropy: float
    saturation: float
    input_share: float
    horizon: float
    state_rms: float
    largest_state: float
    dead_blocks: int
    blocks: int


class Watch:
    """The summaries of a model's layers, collected while the context is open.

    Calls of `forward` are watched, not of `step`, and not inside `torch.compile`.
    """

    def __init__(self, model: nn.Module) -> None:
        named = model.named_modules()
        self._layers = {name: part for name, part in named if isinstance(part, LinearRecurrentUnit)}
        if not self._layers:
            raise ValueError(
                f"{type(model).__name__} has no BD-LRU or H-LRU layer that could be watched."
            )
        self._sums = {name: _Sums(*layer.state_shape) for name, layer in self._layers.items()}
        self._hooks = ExitStack()

    def __enter__(self) -> "Watch":
        for name, layer in self._layers.items():
            hook = partial(_observe, self._sums[name])
            self._hooks.callback(layer.register_forward_hook(hook, with_kwargs=True).remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    @property
    def layers(self) -> list[LayerSummary]:
        """One summary for each layer that was called."""
        return [sums.summary(name or "layer") for name, sums in self._sums.items() if sums.calls]

    def __str__(self) -> str:
        names = [field.name.replace("_", " ") for field in fields(LayerSummary)]
        rows = [names, *([_shown(value) for value in astuple(layer)] for layer in self.layers)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        )
        return "\n".join(lines)


def watch(model: nn.Module) -> Watch:
    """Watch the gates and states of every BD-LRU and H-LRU in `model`.

    Returns a context manager. Printed, it is a table; its `layers` are the rows.
    """
    return Watch(model)


def _shown(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


class _Sums:
    """Sums over all calls of a layer with n blocks of m states."""

    def __init__(self, n: int, m: int) -> None:
        self.calls = 0
        self.steps = 0
        self.rows = 0
        self.row_sums = torch.zeros(4, dtype=torch.float64)
        self.largest = 0.0
        self.state_sums = torch.zeros(2, n, m, dtype=torch.float64)  # of h and h²

    def add(self, p: Tensor, h: Tensor) -> None:
        """Add the shares p (steps, n, .., m + 1) and the states h (steps, n, m) of real steps."""
        self.calls += 1
        self.steps += h.shape[0]
        self.rows += p[..., 0].numel()
        kept = torch.log1p(-p[..., -1].clamp(max=1 - 1e-7))
        entropy = -torch.xlogy(p, p).sum(-1) / math.log(p.shape[-1])
        saturated = p.amax(-1) > SATURATED
        for i, value in enumerate((entropy, saturated, p[..., -1], kept)):
            self.row_sums[i] += value.double().sum().item()
        if h.numel():
            self.largest = max(self.largest, h.abs().amax().item())
        h = h.double().cpu()
        self.state_sums += torch.stack([h.sum(0), h.square().sum(0)])

    def summary(self, name: str) -> LayerSummary:
        entropy, saturation, share, kept = (self.row_sums / max(self.rows, 1)).tolist()
        mean, square = self.state_sums / max(self.steps, 1)
        deviations = (square - mean**2).clamp(min=0).sqrt()
        rms = square.mean().sqrt()
        return LayerSummary(
            name,
            self.calls,
            self.steps,
            entropy,
            saturation,
            share,
            -1 / kept if kept < 0 else math.inf,
            rms.item(),
            self.largest,
            int((deviations.amax(1) <= DEAD * rms).sum()),
            len(mean),
        )


@torch.no_grad()
@torch.compiler.disable
def _observe(
    sums: _Sums, layer: nn.Module, arguments: tuple[Any, ...], options: dict[str, Any], __: object
) -> None:
    """Compute the gates and states of one call of `forward` again, and add them to the sums."""
    assert isinstance(layer, LinearRecurrentUnit)
    given = dict(zip(("x", "state"), arguments, strict=False)) | options
    x, state = given["x"], given.get("state")
    mask = options.get("mask")
    time = Sequences(options.get("cu_seqlens"), mask, options.get("reverse", False))
    x = zero_where_masked(gather(x), mask)
    if state is None and layer.h0 is not None:
        state = layer.h0.expand(time.count(x), *layer.state_shape)
    gates, v = layer.W_g(x).float(), layer.W_v(x).float()
    h, _ = layer.scan(gates, v, state, time)
    w = normalise(gates.unflatten(2, layer.gate_shape), gate=layer.gate).abs()
    p = w / w.sum(-1, keepdim=True).clamp(min=1e-30)
    if mask is None:
        sums.add(p.flatten(0, 1), h.flatten(0, 1))
    else:
        sums.add(p[mask], h[mask])
