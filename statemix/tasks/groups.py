"""Word problems of groups: predict the running product of a sequence of elements.

    y[t] = x[1] · x[2] · … · x[t]

Elements of S_k, A_k and D_k (the symmetries of a k-gon) are permutations in lexicographic order,
starting with the identity, with (a · b)(i) = a(b(i)). Elements of Z_k are numbers under addition
modulo k. Products are looked up
in the Cayley table for all sequences at once.
"""

import itertools
from functools import cache, partial

import numpy as np

from statemix.tasks.automaton import Automaton
from statemix.tasks.task import Examples, Task, Tokens, register_pattern, register_task

__all__ = ["cayley_table", "elements", "group"]

ORDERS = {
    "s": (2, 6),
    "a": (3, 6),
    "d": (3, 12),
    "z": (2, 999),
}  # smallest and largest k of each family


@register_task("group")
def group(family: str = "s", order: int = 5) -> Task:
    """Track running products in S_k, A_k, D_k or Z_k, where k is `order`."""
    family = family.lower()
    if family not in ORDERS:
        raise ValueError(
            f"Unknown family of groups {family!r}. "
            "Available: s (permutations), a (even ones), d (dihedral), z (cyclic)."
        )
    least, most = ORDERS[family]
    if not least <= order <= most:
        raise ValueError(
            f"The group {family.upper()}{order} is out of range: "
            f"{family}{least} .. {family}{most} fit."
        )
    table = cayley_table(family, order)
    size = len(table)
    return Task(
        f"{family}{order}",
        size,
        size,
        partial(draw_products, family, order),
        16,
        solve=partial(products, family, order),
        automaton=Automaton(table, table),
    )


register_pattern(
    r"([sadz])(\d{1,3})", "group", lambda match: {"family": match[1], "order": int(match[2])}
)


@cache
def elements(family: str, order: int) -> tuple[tuple[int, ...], ...]:
    """List the permutations of a group in lexicographic order."""
    if family == "z":
        return tuple(tuple((i + shift) % order for i in range(order)) for shift in range(order))
    if family == "d":
        turns = (tuple((shift + i) % order for i in range(order)) for shift in range(order))
        return tuple(sorted(each[::way] for each in turns for way in (1, -1)))
    every = itertools.permutations(range(order))
    return tuple(p for p in every if family == "s" or is_even(p))


def is_even(permutation: tuple[int, ...]) -> bool:
    """True if the permutation has an even number of inversions."""
    inversions = sum(a > b for a, b in itertools.combinations(permutation, 2))
    return inversions % 2 == 0


@cache
def cayley_table(family: str, order: int) -> Tokens:
    """Compute table[a, b] = a · b for the indices of all elements."""
    permutations = np.array(elements(family, order))
    if family == "z":
        return np.add.outer(np.arange(order), np.arange(order)) % order
    index = {tuple(p): i for i, p in enumerate(permutations.tolist())}
    composed = permutations[:, permutations]  # [a, b, i] = a(b(i))
    return np.array([[index[tuple(p)] for p in row] for row in composed.tolist()], dtype=np.int64)


def products(family: str, order: int, inputs: Tokens) -> Tokens:
    """Compute running products along the last axis."""
    table = cayley_table(family, order)
    targets = np.empty_like(inputs)
    targets[:, 0] = inputs[:, 0]
    for t in range(1, inputs.shape[1]):
        targets[:, t] = table[targets[:, t - 1], inputs[:, t]]
    return targets


def draw_products(
    family: str, order: int, count: int, length: int, rng: np.random.Generator
) -> Examples:
    """Draw independent, uniform elements, with their running products as targets."""
    inputs = rng.integers(0, len(cayley_table(family, order)), (count, length))
    return Examples(inputs, products(family, order, inputs))
