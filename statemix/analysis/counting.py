"""What a block can count: groups below the size that would carry them for ever, over sequences of bounded length.

A block of non-negative gates may move its entries by a permutation p and add to them, as its input tells, a little at a time,

    h[p(i)] ← (1 − ε) h[i] + ε d[i],    d[i] in 0 .. k − 1        rows that sum to one, as a softmax makes them

so that after t steps h / ε are sums of what was added, each in the place where it was carried, if ε is small beside 1 / t².  Modulo k these
pairs (p, d) multiply as the generalised permutations do (`wreath`, the wreath product of Z_k and S_m), and a readout that knows the
remainders of counts up to (k − 1) t, beside p from a block that carries it exactly, knows the element.  By this the least block is

    S_n   for ever   by counting
    S2       2           1          Z2, without a permutation
    S3       3           2          Z3 in both of two places, which swap
    S4       4           3          even changes of sign of three axes, which are permuted
    S5       5           5          its A5 has no abelian normal subgroup to count in, and does not fit into S4

For S3, S4 and S5 the right column is where the paper's accuracies at sixteen tokens become 1.000.  The number of pieces of such a readout,
or the precision that it needs, grows with the length, and the room between two counts shrinks: what is learnt this way does not last.  (A
readout of any complexity could do with one state: h ← h / 25 + digit writes the whole sequence down.)
"""

import itertools

import numpy as np
import torch
from torch import Tensor

from statemix.analysis.representations import Element, faithful_representation, inverse, whole
from statemix.ops import gated_block_scan
from statemix.tasks.task import Tokens


def parts(a: Element, m: int) -> tuple[list[int], list[int]]:
    """(p, d): the place each thing goes to, and what is added on the way."""
    return [thing % m for thing in a[:m]], [thing // m for thing in a[:m]]


def counting_gates(elements: list[Element], m: int, eps: float) -> tuple[Tensor, Tensor]:
    """Raw gates (elements, 2, m, m + 1) and values (elements, 2, m): a block that carries p from 0 .. m - 1, and one that counts."""
    gates, v = torch.zeros(len(elements), 2, m, m + 1), torch.zeros(len(elements), 2, m)
    for number, element in enumerate(elements):
        for source, (place, added) in enumerate(zip(*parts(element, m), strict=True)):
            gates[number, 0, place, source] = 1.0
            gates[number, 1, place, source], gates[number, 1, place, m] = 1.0 - eps, eps
            v[number, 1, place] = added
    return gates.log(), v


def carry_by_counting(n: int, m: int, k: int, inputs: Tokens) -> Tokens:
    """Running products of elements of S_n (B, T), by two blocks of m states that count modulo k."""
    found = faithful_representation(n, m, turns=k)
    if found is None:
        raise ValueError(
            f"S{n} has no copy among permutations of {m} things that turn in steps of 1/{k}: it cannot be counted so."
        )
    elements = list(itertools.permutations(range(n)))  # in the order of the task
    steps = [
        inverse(found[g]) for g in elements
    ]  # the newest factor stands on the right of a product, and on the left of a scan
    B, T = inputs.shape
    eps = 1.0 / (8.0 * k * max(T, 1) ** 2)
    gates, v = counting_gates(steps, m, eps)
    start = torch.stack([torch.arange(float(m)), torch.zeros(m)]).expand(B, 2, m)
    h, _ = gated_block_scan(gates[torch.from_numpy(inputs)], v[torch.from_numpy(inputs)], start)
    return read(h, eps, k, {a: number for number, a in enumerate(steps)})


def read(h: Tensor, eps: float, k: int, numbers: dict[Element, int]) -> Tokens:
    """The element that each state (B, T, 2, m) stands for: where the things are, and their counts modulo k."""
    m = h.shape[-1]
    things = h[..., 0, :].round().long().numpy()
    turns = ((h[..., 1, :].double() / eps).round().long() % k).numpy()
    places = np.argsort(things, -1)  # of each thing
    images = places + m * np.take_along_axis(turns, places, -1)
    answers = [numbers[whole(image, k)] for image in images.reshape(-1, m).tolist()]
    return np.array(answers, dtype=np.int64).reshape(h.shape[:2])
