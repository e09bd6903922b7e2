"""How the gates of BD-LRU and H-LRU start.

    W_g ~ N(0, std²),    c = own_bias at the gate through which a state keeps its value,
                         c = input_bias at the input gate, and 0 elsewhere

With the paper's values all softmax gates start out uniform: a block averages its states and its
input at every step, and what it has read is gone after a few. Large weights make gates nearly hard
from the start, and a bias towards the own state makes them hold: most states copy themselves, and
load their input at the few tokens whose weights overcome the bias.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import torch
from torch import nn

__all__ = ["INITS", "GateInit", "find_init", "set_init"]


@dataclass(frozen=True)
class GateInit:
    """The distribution of raw gates at initialisation."""

    std: float = 0.02
    own_bias: float = 0.0
    input_bias: float = 0.0

    @torch.no_grad()
    def reset(self, gates: nn.Module, rows: int, columns: int) -> None:
        """Reset the parameters of `gates`: each block or channel has `rows` × `columns` gates.

        The gate that keeps a state is gate i in row i of a block. In the only row of a channel, it
        is the gate of the newest value.
        """
        nn.init.normal_(gates.get_parameter("weight"), std=self.std)
        c = gates.get_parameter("bias")
        unit = c.new_zeros(rows, columns)
        unit.fill_diagonal_(self.own_bias)
        unit[:, -1] = self.input_bias
        c.view(-1, *unit.shape).copy_(unit)


INITS: dict[str, GateInit] = {
    "paper": GateInit(),
    "select": GateInit(std=0.2, own_bias=4.0),
    "hold": GateInit(std=0.3, own_bias=10.0),
}


def find_init(init: str | Mapping[str, float]) -> GateInit:
    """The initialisation with this name, or with these fields."""
    if isinstance(init, str):
        if init not in INITS:
            raise ValueError(f"Unknown init {init!r}. Available: {', '.join(INITS)}.")
        return INITS[init]
    if not isinstance(init, Mapping):
        raise ValueError(f"`init` must be a name or a mapping of fields, got {init!r}.")
    known = [f.name for f in fields(GateInit)]
    unknown = sorted(set(init) - set(known))
    if unknown:
        raise ValueError(
            f"Unknown fields of `init`: {', '.join(unknown)}. Available: {', '.join(known)}."
        )
    for name, value in init.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value):
            raise ValueError(f"The `{name}` of `init` must be a finite number, got {value!r}.")
    found = GateInit(**init)
    if found.std < 0:
        raise ValueError(f"The `std` of `init` must not be negative, got {found.std}.")
    return found


def set_init(gates: nn.Module, init: GateInit, rows: int, columns: int) -> None:
    """Let `gates.reset_parameters` draw from `init`; the paper's start is what it does anyway."""
    if init == INITS["paper"]:
        return
    if "bias" not in dict(gates.named_parameters()):
        raise ValueError(
            "`init` needs gates that depend on the input, with selectivity 'full' or 'pointwise'. "
            "Leave `init` at 'paper' for selectivity 'none'."
        )
    reset: Any = partial(init.reset, gates, rows, columns)
    gates.reset_parameters = reset
