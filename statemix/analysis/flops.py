"""Floating point operations of one recurrent step: the paper's table, as functions, with its symbols.

    LSTM            8 H² + 25 H
    H-LRU           2 H m + 2 H
    BD-LRU          2 H m² + 2 H
    Mamba2          2 N S
    DeltaNet        N_h (4 N r + 4 N)
    DeltaProduct    H_n N_h (4 N r + 4 N)

H counts blocks, N = H m states, S the states of a channel, N_h heads, H_n Householder products, r = 1 is a rank.  A multiply-add
counts twice; projections and gates, which need no state, do not count.  The paper's BD-LRU has an input product for each block; there is
one for each state, 2 H m, so `counted` differs from the table by 2 H (m − 1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from statemix.models import ModelConfig

RANK = 1


@dataclass(frozen=True)
class StepCost:
    """What one step of one layer costs: by the paper's formula, and counted."""

    formula: int
    counted: int


def lstm_cost(hidden: int) -> StepCost:
    """Four products with the hidden state; three sigmoids and two tanhs of about four operations each, and their products and sums."""
    cost = 8 * hidden**2 + 25 * hidden
    return StepCost(cost, cost)


def hlru_cost(n: int, m: int) -> StepCost:
    return StepCost(2 * n * m + 2 * n, 2 * n * m + 2 * n)


def bdlru_cost(n: int, m: int) -> StepCost:
    return StepCost(2 * n * m**2 + 2 * n, 2 * n * m**2 + 2 * n * m)


def mamba2_cost(width: int, d_state: int, expand: int) -> StepCost:
    """The table counts the decay alone; the outer product that enters counts as much again."""
    inner = expand * width
    return StepCost(2 * inner * d_state, 4 * inner * d_state)


def delta_cost(heads: int, head_dim: int, products: int) -> StepCost:
    """The table's N is a head's width; counted, a head's state is a matrix that a product reads once and writes once."""
    return StepCost(
        products * heads * (4 * head_dim * RANK + 4 * head_dim),
        products * heads * (4 * head_dim**2 + head_dim),
    )


COSTS: dict[str, Callable[[int, Mapping[str, Any]], StepCost]] = {
    "lstm": lambda width, options: lstm_cost(options["hidden"]),
    "hlru": lambda width, options: hlru_cost(options["n_channels"], options["order"]),
    "bdlru": lambda width, options: bdlru_cost(options["n_blocks"], options["block_size"]),
    "mamba2": lambda width, options: mamba2_cost(
        width, options.get("d_state", 64), options.get("expand", 2)
    ),
    "deltanet": lambda width, options: delta_cost(
        options.get("heads", 2), options.get("head_dim", 32), 1
    ),
    "gated_deltanet": lambda width, options: delta_cost(
        options.get("heads", 2), options.get("head_dim", 32), 1
    ),
    "deltaproduct": lambda width, options: delta_cost(
        options.get("heads", 2), options.get("head_dim", 32), options.get("products", 4)
    ),
}


def step_cost(model: ModelConfig) -> StepCost:
    """Of all layers of a model together."""
    if model.mixer not in COSTS:
        raise ValueError(
            f"The cost of a step is not known for the mixer {model.mixer!r}. Known: {', '.join(COSTS)}."
        )
    one = COSTS[model.mixer](model.width, model.options)
    return StepCost(model.layers * one.formula, model.layers * one.counted)
