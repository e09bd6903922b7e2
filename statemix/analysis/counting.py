"""Tracking by counting: blocks too small for a group can track it for bounded lengths.

A block with non-negative gates can permute its entries by p and, depending on the input, add a
small amount to each of them:

    h[p(i)] ← (1 − ε) h[i] + ε d[i],    d[i] in 0 .. k − 1

Every row of these gates sums to one, as after a softmax.

If ε is small compared to 1 / t², the entries of h / ε after t steps are the sums of the added
numbers, each moved along by the permutations. Modulo k the pairs (p, d) multiply like generalised
permutations (`wreath`, the wreath product of Z_k and S_m). A second block tracks p exactly. A
readout that computes counts up to (k − 1) t modulo k can then identify the group element. The
smallest block sizes are

    S_n   any length   by counting
    S2        2            1          Z2, without a permutation
    S3        3            2          Z3 in each of two positions, which can be swapped
    S4        4            3          even sign changes of three axes, which are permuted
    S5        5            5          A5 has no abelian normal subgroup and does not embed into S4

For S3, S4 and S5 the right column is the block size at which the paper's accuracies at 16 tokens
reach 1.000. With longer sequences the readout needs more linear pieces or more precision, and the
distance between neighbouring counts shrinks, so a solution of this kind does not generalise to
longer sequences. (With a readout of unbounded complexity one state suffices: h ← h / 25 + digit
stores the whole sequence.)
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from statemix.analysis.representations import Element, complete, faithful_representation, inverse
from statemix.ops import gated_block_scan
from statemix.tasks.task import Tokens

__all__ = ["carry_by_counting", "counting_gates"]


def parts(a: Element, m: int) -> tuple[list[int], list[int]]:
    """Split an element into (p, d): the new position of each point, and the amount added to it."""
    return [thing % m for thing in a[:m]], [thing // m for thing in a[:m]]


def counting_gates(elements: list[Element], m: int, eps: float) -> tuple[Tensor, Tensor]:
    """Raw gates (elements, 2, m, m + 1) and values (elements, 2, m) of two blocks.

    The first block permutes the numbers 0 .. m - 1 by p; the second block counts.
    """
    gates = torch.zeros(len(elements), 2, m, m + 1)
    v = torch.zeros(len(elements), 2, m)
    for number, element in enumerate(elements):
        for source, (place, added) in enumerate(zip(*parts(element, m), strict=True)):
            gates[number, 0, place, source] = 1.0
            gates[number, 1, place, source] = 1.0 - eps
            gates[number, 1, place, m] = eps
            v[number, 1, place] = added
    return gates.log(), v


def carry_by_counting(n: int, m: int, k: int, inputs: Tokens) -> Tokens:
    """Compute running products of elements of S_n (B, T) with two blocks of m states, modulo k."""
    found = faithful_representation(n, m, turns=k)
    if found is None:
        raise ValueError(
            f"S{n} does not embed into the wreath product of Z_{k} and S_{m}, "
            f"so blocks of {m} states that count modulo {k} cannot track it. Increase m or k."
        )
    elements = list(itertools.permutations(range(n)))  # in the order of the task
    # A product grows on the right and a scan on the left, hence the inverses.
    steps = [inverse(found[g]) for g in elements]
    B, T = inputs.shape
    eps = 1.0 / (8.0 * k * max(T, 1) ** 2)
    gates, v = counting_gates(steps, m, eps)
    start = torch.stack([torch.arange(float(m)), torch.zeros(m)]).expand(B, 2, m)
    h, _ = gated_block_scan(gates[torch.from_numpy(inputs)], v[torch.from_numpy(inputs)], start)
    return read(h, eps, k, {a: number for number, a in enumerate(steps)})


def read(h: Tensor, eps: float, k: int, numbers: dict[Element, int]) -> Tokens:
    """Decode each state (B, T, 2, m) from the order of its points and their counts modulo k."""
    m = h.shape[-1]
    things = h[..., 0, :].round().long().numpy()
    turns = ((h[..., 1, :].double() / eps).round().long() % k).numpy()
    places = np.argsort(things, -1)  # the position of each point
    images = places + m * np.take_along_axis(turns, places, -1)
    answers = [numbers[complete(image, k)] for image in images.reshape(-1, m).tolist()]
    return np.array(answers, dtype=np.int64).reshape(h.shape[:2])
