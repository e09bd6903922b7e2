"""Which groups a block of m states can carry without loss, however long the sequence.

Rows of A have an L1 norm of at most one, so ‖A x‖_∞ ≤ ‖x‖_∞.  If an element g of a group acts by A_g and its powers return to the identity,
A_g⁻¹ is a power of A_g and has such rows too.  So A_g keeps every ‖x‖_∞, and the only matrices which do are **signed permutations**: one
±1 in every row and column.  Gates that are not negative leave the permutations.  So a block of size m carries every group that embeds into
the (signed) permutations of m things.

It carries no others but quotients of their subgroups.  Let states that stand for different elements stay a fixed distance apart (without
which no finite precision tells them apart).  Products of such matrices have limits, among them a projection P of norm one on whose range
they act without loss; that range is again a space with a largest entry, of some k ≤ m entries, and they permute these, with signs.  What
P forgets may differ for one and the same element, hence the quotient.  Such a group's order divides that of the (signed) permutations,
which settles the table.  Several blocks help no more: quotients of subgroups of products of blocks are abelian for m = 2 (2-groups with
signs), have a second derived group of one element for m = 3 without signs, and are solvable for m ≤ 4; S3, S4 and S5 in turn are not.

    S_n   gates ≥ 0   signed gates
    S2       2            1           −1 is a signed permutation of one thing
    S3       3            3
    S4       4            3           the rotations of the cube permute its three axes, with signs
    S5       5            5

An accuracy of one on short sequences below these sizes is possible, of a state that contracts slowly enough; on long ones, at a given
precision, it is not.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Element = tuple[
    int, ...
]  # where each thing goes; of signed ones things 0 .. m - 1, then their negatives m .. 2m - 1


def wreath(m: int, turns: int) -> list[Element]:
    """Permutations of m things that also turn, in steps of 1/turns: plain for one turn, signed for two.

    As permutations of turns · m things: thing i + m r is thing i after r turns.
    """
    found = []
    for places in itertools.permutations(range(m)):
        for added in itertools.product(range(turns), repeat=m):
            first = [place + m * r for place, r in zip(places, added, strict=True)]
            found.append(whole(first, turns))
    return found


def whole(first: Sequence[int], turns: int) -> Element:
    """The element that sends things 0 .. m - 1 to `first`, and their turned ones along."""
    m = len(first)
    return tuple((thing + m * r) % (turns * m) for r in range(turns) for thing in first)


def multiply(a: Element, b: Element) -> Element:
    """First b, then a."""
    return tuple(a[i] for i in b)


def inverse(a: Element) -> Element:
    return tuple(sorted(range(len(a)), key=a.__getitem__))


def order(a: Element) -> int:
    power, count = a, 1
    while power != tuple(range(len(a))):
        power, count = multiply(a, power), count + 1
    return count


def extend(
    generators: tuple[Element, ...], images: tuple[Element, ...]
) -> dict[Element, Element] | None:
    """The homomorphism that sends the generators of a group to `images`, if there is one."""
    identity = tuple(range(len(generators[0])))
    found, new = {identity: tuple(range(len(images[0])))}, [identity]
    while new:
        g = new.pop()
        for generator, image in zip(generators, images, strict=True):
            product, value = multiply(generator, g), multiply(image, found[g])
            if product not in found:
                found[product] = value
                new.append(product)
            elif found[product] != value:
                return None
    return found


def faithful_representation(n: int, m: int, *, turns: int = 1) -> dict[Element, Element] | None:
    """One that sends S_n into `wreath(m, turns)`, each element to another; None if there is none."""
    swap, cycle = (1, 0, *range(2, n)), (*range(1, n), 0)
    targets = wreath(m, turns)
    candidates = [
        [a for a in targets if order(a) == order(generator)] for generator in (swap, cycle)
    ]
    for images in itertools.product(*candidates):
        found = extend((swap, cycle), images)
        if found is not None and len(set(found.values())) == math.factorial(n):
            return found
    return None


def as_matrix(a: Element, m: int) -> NDArray[np.float64]:
    """The matrix A with A x = the things of x where `a`, plain or signed, sends them, with their signs."""
    matrix = np.zeros((m, m))
    for source in range(m):
        target = a[source]
        matrix[target % m, source] = -1.0 if target >= m else 1.0
    return matrix


def multiplies_like(transitions: NDArray[np.float64], products: NDArray[np.int64]) -> float:
    """The share of pairs (x, y) for which a block's rounded transitions multiply as a group's elements do.

    Args:
        transitions: (order, m, m), the A of each element, rows rounded to their largest entry.
        products: (order, order), the number of x · y, as in h = A_y A_x h for the sequence x, y.
    """
    chosen = np.abs(transitions).argmax(-1)  # h'[i] = h[chosen[i]]
    signs = np.sign(np.take_along_axis(transitions, chosen[..., None], -1))[..., 0]
    both = np.take_along_axis(
        chosen[:, None], chosen[None], -1
    )  # [x, y, i]: where state i of A_y A_x comes from
    sign = (
        np.take_along_axis(signs[:, None] + 0 * signs[None], chosen[None] + 0 * chosen[:, None], -1)
        * signs[None]
    )
    return float(((both == chosen[products]) & (sign == signs[products])).all(-1).mean())
