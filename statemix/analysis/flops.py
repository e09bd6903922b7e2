"""Floating-point operations of one recurrent step: the formulas of the paper's table.

    LSTM            8 H² + 25 H
    H-LRU           2 H m + 2 H
    BD-LRU          2 H m² + 2 H
    Mamba2          2 N S
    DeltaNet        N_h (4 N r + 4 N)
    DeltaProduct    H_n N_h (4 N r + 4 N)

H is the number of blocks, N = H m the number of states, S the number of states per channel, N_h the
number of heads, H_n the number of Householder products, and r = 1 a rank. A multiply-add counts as
two operations. Projections and gates do not depend on the state and are not counted. The paper
counts one input product per block of a BD-LRU. There is one per state, 2 H m in total, so `counted`
exceeds the table by 2 H (m − 1).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from statemix.models import ModelConfig

__all__ = ["StepCost", "step_cost"]

RANK = 1


@dataclass(frozen=True)
class StepCost:
    """Operations of one step of one layer: by the paper's formula, and as counted in this code."""

    formula: int
    counted: int


def lstm_cost(hidden: int) -> StepCost:
    """Four matrix products with the hidden state, and 25 operations per unit.

    A unit has three sigmoids and two tanhs of about four operations each, and their sums and
    products.
    """
    cost = 8 * hidden**2 + 25 * hidden
    return StepCost(cost, cost)


def hlru_cost(n: int, m: int) -> StepCost:
    """Both counts give 2 H m + 2 H."""
    return StepCost(2 * n * m + 2 * n, 2 * n * m + 2 * n)


def bdlru_cost(n: int, m: int) -> StepCost:
    """The paper counts one input product per block; the code has one for each of the n m states."""
    return StepCost(2 * n * m**2 + 2 * n, 2 * n * m**2 + 2 * n * m)


def mamba2_cost(width: int, d_state: int, expand: int) -> StepCost:
    """The paper counts the decay only; the outer product of the input costs the same."""
    inner = expand * width
    return StepCost(2 * inner * d_state, 4 * inner * d_state)


def delta_cost(heads: int, head_dim: int, products: int) -> StepCost:
    """The paper's N is the width of a head.

    In the code the state of a head is a matrix, which each Householder product reads and writes.
    """
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
    """Compute the operations of one step through all layers of `model`."""
    if model.mixer not in COSTS:
        raise ValueError(
            f"There is no cost formula for the mixer {model.mixer!r}. "
            f"Available: {', '.join(COSTS)}."
        )
    one = COSTS[model.mixer](model.width, model.options)
    return StepCost(model.layers * one.formula, model.layers * one.counted)
