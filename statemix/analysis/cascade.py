"""Depth can replace block size: two layers of blocks with three states track S4 exactly.

A single block of three states cannot represent S4 (`statemix.analysis.representations`). But every
element factors uniquely as g = v s. Here s is in S3, the permutations that fix the last point, and
v is in V4, the identity and the three double swaps, on which S3 acts by conjugation:

    (v s) (u r) = v (s u s⁻¹) · s r

The S3 factor of a product therefore depends on S3 factors only: one block of three states tracks it
with h[i] ← h[r(i)]. V4 is two bits that add modulo 2, so two blocks, each of which swaps two
states or keeps them, track it. The bits to add depend on s and on the input, so the second layer
reads the output of the first:

    layer 1    s ← s r             gates depend on the input only
    layer 2    v ← v (s u s⁻¹)     gates depend on the input and on the output of layer 1

This is a chain of quotients, S4 / V4 = S3 and V4 = Z2 × Z2, with one layer for each factor. By the
theorem of Krohn and Rhodes (1965), if a cascade can simulate a simple group, one of its components
can. At a given precision and for any number of layers, blocks with non-negative gates must
therefore be as large as the hardest simple factor requires:

    S_n   factors        one layer   any depth
    S2    Z2                 2           2
    S3    Z2, Z3             3           3
    S4    Z2, Z2, Z3, Z2     4           3
    S5    Z2, A5             5           5       A5 is simple and has more elements than S4
"""

import itertools
from functools import cache

import numpy as np
import torch
from torch import Tensor

from statemix.analysis.representations import Element, inverse, multiply
from statemix.ops import block_scan
from statemix.tasks.task import Tokens

__all__ = ["DOUBLE_SWAPS", "ELEMENTS", "bit_gates", "carry_s4", "factors", "product_gates"]

M = 3  # block size
ELEMENTS: list[Element] = list(itertools.permutations(range(4)))  # in the order of the task `s4`
# The elements of V4, ordered so that the index of a product is the bitwise XOR of the indices.
DOUBLE_SWAPS: list[Element] = [(0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)]


@cache
def factors(g: Element) -> tuple[Element, Element]:
    """Factor g = v s: v maps the last point to the same place as g, and s fixes the last point."""
    (v,) = (v for v in DOUBLE_SWAPS if v[3] == g[3])
    return v, multiply(inverse(v), g)


def product_gates(inputs: Tokens) -> Tensor:
    """Transitions A (B, T, 1, 3, 3) of layer 1, which apply h[i] ← h[r(i)]."""
    A = torch.zeros(len(ELEMENTS), 1, M, M)
    for number, g in enumerate(ELEMENTS):
        _, r = factors(g)
        for i in range(M):
            A[number, 0, i, r[i]] = 1.0
    return A[torch.from_numpy(inputs)]


def bit_gates(inputs: Tokens, before: Tokens) -> Tensor:
    """Transitions A (B, T, 2, 3, 3) of layer 2.

    There is one block for each bit of s u s⁻¹. A block swaps its first two states if its bit is 1.
    """
    A = torch.zeros(len(ELEMENTS), len(ELEMENTS), 2, M, M)
    for (number, g), (state, s) in itertools.product(enumerate(ELEMENTS), enumerate(ELEMENTS)):
        u, _ = factors(g)
        added = DOUBLE_SWAPS.index(multiply(multiply(s, u), inverse(s)))
        for bit in range(2):
            rows = (1, 0, 2) if added >> bit & 1 else (0, 1, 2)
            A[number, state, bit, range(M), rows] = 1.0
    return A[torch.from_numpy(inputs), torch.from_numpy(before)]


def carry_s4(inputs: Tokens) -> Tokens:
    """Compute running products in S4 (B, T) with two scans of blocks of three states."""
    B, T = inputs.shape
    things = torch.arange(float(M))
    h, _ = block_scan(product_gates(inputs), torch.zeros(B, T, 1, M), things.expand(B, 1, M))
    numbers = {g: number for number, g in enumerate(ELEMENTS)}
    s = [
        [numbers[tuple(int(i) for i in (*state, 3))] for state in row]
        for row in h[:, :, 0].tolist()
    ]
    after = np.array(s, dtype=np.int64).reshape(B, T)
    # The state before each step is a function of the state after it and of the input.
    before = np.concatenate([np.zeros((B, 1), dtype=np.int64), after[:, :-1]], 1)
    bits, _ = block_scan(bit_gates(inputs, before), torch.zeros(B, T, 2, M), things.expand(B, 2, M))
    v = (bits[..., 0].long() @ torch.tensor([1, 2])).numpy()
    table = np.array([[numbers[multiply(swap, g)] for g in ELEMENTS] for swap in DOUBLE_SWAPS])
    return table[v, after]
