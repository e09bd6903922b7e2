"""What depth adds to block size: products in S4, carried exactly by two layers whose blocks have three states.

One block of three cannot hold S4 (`statemix.analysis.representations`).  But every element is one way g = v s, with s in S3, the
permutations that leave the last thing alone, and v in V4, the identity and the three double swaps, among which s moves by conjugation:

    (v s) (u r) = v (s u s⁻¹) · s r

so the product in S3 goes by itself, h[i] ← h[r(i)] in one block of three.  And V4 is two bits, which add up: two blocks that swap or do
not.  What they add depends on s and on the input, so their layer must see the layer that carries s:

    layer 1    s ← s r             gates depend on the input alone
    layer 2    v ← v (s u s⁻¹)     gates depend on the input and on the output of layer 1

This is a chain of quotients, S4 / V4 = S3 and V4 = Z2 × Z2, a layer to each factor.  By the theorem of Krohn and Rhodes (1965) a simple
group that a cascade can count in must be counted in by one of its parts.  So with any number of layers, at a given precision, blocks of
non-negative gates must be as large as the hardest simple factor needs:

    S_n   factors        one layer   any depth
    S2    Z2                 2           2
    S3    Z2, Z3             3           3
    S4    Z2, Z2, Z3, Z2     4           3
    S5    Z2, A5             5           5       A5 is simple, and has more elements than four things have permutations
"""

import itertools
from functools import cache

import numpy as np
import torch
from torch import Tensor

from statemix.analysis.representations import Element, inverse, multiply
from statemix.ops import block_scan
from statemix.tasks.task import Tokens

M = 3  # states of every block
THINGS = tuple(range(4))
ELEMENTS: list[Element] = list(itertools.permutations(THINGS))  # in the order of the task `s4`
DOUBLE_SWAPS: list[Element] = [
    (0, 1, 2, 3),
    (1, 0, 3, 2),
    (2, 3, 0, 1),
    (3, 2, 1, 0),
]  # numbered so that products add bits


@cache
def factors(g: Element) -> tuple[Element, Element]:
    """(v, s) with g = v s: v brings the last thing to where g does, s is the rest."""
    (v,) = (v for v in DOUBLE_SWAPS if v[3] == g[3])
    return v, multiply(inverse(v), g)


def product_gates(inputs: Tokens) -> Tensor:
    """Layer 1: A (B, T, 1, 3, 3) with h[i] ← h[r(i)]."""
    A = torch.zeros(len(ELEMENTS), 1, M, M)
    for number, g in enumerate(ELEMENTS):
        _, r = factors(g)
        for i in range(M):
            A[number, 0, i, r[i]] = 1.0
    return A[torch.from_numpy(inputs)]


def bit_gates(inputs: Tokens, before: Tokens) -> Tensor:
    """Layer 2: A (B, T, 2, 3, 3), a block for each bit of s u s⁻¹, which swaps its first two states where that is one."""
    A = torch.zeros(len(ELEMENTS), len(ELEMENTS), 2, M, M)
    for (number, g), (state, s) in itertools.product(enumerate(ELEMENTS), enumerate(ELEMENTS)):
        u, _ = factors(g)
        added = DOUBLE_SWAPS.index(multiply(multiply(s, u), inverse(s)))
        for bit in range(2):
            rows = (1, 0, 2) if added >> bit & 1 else (0, 1, 2)
            A[number, state, bit, range(M), rows] = 1.0
    return A[torch.from_numpy(inputs), torch.from_numpy(before)]


def carry_s4(inputs: Tokens) -> Tokens:
    """Running products of elements of S4 (B, T), by two scans over blocks of three."""
    B, T = inputs.shape
    things = torch.arange(float(M))
    h, _ = block_scan(product_gates(inputs), torch.zeros(B, T, 1, M), things.expand(B, 1, M))
    numbers = {g: number for number, g in enumerate(ELEMENTS)}
    s = [
        [numbers[tuple(int(i) for i in (*state, 3))] for state in row]
        for row in h[:, :, 0].tolist()
    ]
    after = np.array(s, dtype=np.int64).reshape(B, T)
    before = np.concatenate(
        [np.zeros((B, 1), dtype=np.int64), after[:, :-1]], 1
    )  # the input tells this from what is after it
    bits, _ = block_scan(bit_gates(inputs, before), torch.zeros(B, T, 2, M), things.expand(B, 2, M))
    v = (bits[..., 0].long() @ torch.tensor([1, 2])).numpy()
    table = np.array([[numbers[multiply(swap, g)] for g in ELEMENTS] for swap in DOUBLE_SWAPS])
    return table[v, after]
