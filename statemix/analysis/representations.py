"""Groups that a block of m states can track without loss over sequences of any length.

Every row of A has an L1 norm of at most one, so ‖A x‖_∞ ≤ ‖x‖_∞.  If an element g of a finite group
acts by A_g, then A_g⁻¹ is a power of A_g and also has this property. So A_g preserves ‖x‖_∞.  The
only matrices that do are **signed permutations**, which have one ±1 in every row and column; with
non-negative gates only plain permutations remain. A block of size m can therefore track every
group that embeds into the (signed) permutations of m points.

The only other groups it can track are quotients of subgroups of these. Assume that the states of
different elements keep a fixed distance, as any finite precision requires. Products of the matrices
have limit points, one of which is a projection P of norm one. The matrices act without loss on the
range of P, which is isometric to a max-norm space of k ≤ m dimensions, and they permute its
coordinates with signs. The components that P removes may differ for the same element, hence the
quotient. The order of such a group divides the number of (signed) permutations, which determines
the table. Several blocks do not help. Quotients of subgroups of products of blocks are abelian for
m = 2 (2-groups with signs), have a trivial second derived group for m = 3 without signs, and are
solvable for m ≤ 4; S3, S4 and S5 respectively are not.

    S_n   gates ≥ 0   signed gates
    S2       2            1           −1 is a signed permutation of one point
    S3       3            3
    S4       4            3           the rotations of the cube permute its three axes, with signs
    S5       5            5

A smaller block can reach an accuracy of one on short sequences with a state that contracts slowly.
On long sequences it cannot at any given precision.
"""

import itertools
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Element",
    "as_matrix",
    "complete",
    "faithful_representation",
    "inverse",
    "multiplies_like",
    "multiply",
    "wreath",
]

# The image of each point. Signed permutations of m points act on 2m: i + m is the negative of i.
Element = tuple[int, ...]


def wreath(m: int, turns: int) -> list[Element]:
    """List the generalised permutations of m points, the wreath product of Z_turns and S_m.

    They are plain permutations for turns = 1 and signed permutations for turns = 2. Each is
    represented as a permutation of turns · m points, where i + m r is point i after r turns.
    """
    found = []
    for places in itertools.permutations(range(m)):
        for added in itertools.product(range(turns), repeat=m):
            first = [place + m * r for place, r in zip(places, added, strict=True)]
            found.append(complete(first, turns))
    return found


def complete(first: Sequence[int], turns: int) -> Element:
    """Complete the images `first` of the points 0 .. m - 1 to an element of `wreath(m, turns)`."""
    m = len(first)
    return tuple((thing + m * r) % (turns * m) for r in range(turns) for thing in first)


def multiply(a: Element, b: Element) -> Element:
    """Compute the product a · b, which applies b first and then a."""
    return tuple(a[i] for i in b)


def inverse(a: Element) -> Element:
    """Compute the inverse permutation."""
    return tuple(sorted(range(len(a)), key=a.__getitem__))


def order(a: Element) -> int:
    """Find the smallest k ≥ 1 for which a to the power of k is the identity."""
    power = a
    count = 1
    while power != tuple(range(len(a))):
        power = multiply(a, power)
        count += 1
    return count


def extend(
    generators: tuple[Element, ...], images: tuple[Element, ...]
) -> dict[Element, Element] | None:
    """Extend the map from generators to `images` to a homomorphism of the group, or return None."""
    identity = tuple(range(len(generators[0])))
    found = {identity: tuple(range(len(images[0])))}
    new = [identity]
    while new:
        g = new.pop()
        for generator, image in zip(generators, images, strict=True):
            product = multiply(generator, g)
            value = multiply(image, found[g])
            if product not in found:
                found[product] = value
                new.append(product)
            elif found[product] != value:
                return None
    return found


def faithful_representation(n: int, m: int, *, turns: int = 1) -> dict[Element, Element] | None:
    """Find an injective homomorphism from S_n into `wreath(m, turns)`, or return None."""
    generators = (1, 0, *range(2, n)), (*range(1, n), 0)  # a swap and a cycle
    targets = wreath(m, turns)
    candidates = [[a for a in targets if order(a) == order(generator)] for generator in generators]
    for images in itertools.product(*candidates):
        found = extend(generators, images)
        if found is not None and len(set(found.values())) == math.factorial(n):
            return found
    return None


def as_matrix(a: Element, m: int) -> NDArray[np.float64]:
    """Write a plain or signed permutation as the m × m matrix that applies it to a vector."""
    matrix = np.zeros((m, m))
    for source in range(m):
        target = a[source]
        matrix[target % m, source] = -1.0 if target >= m else 1.0
    return matrix


def multiplies_like(transitions: NDArray[np.float64], products: NDArray[np.int64]) -> float:
    """Measure the share of pairs (x, y) for which the rounded transitions multiply like the group.

    Args:
        transitions: (order, m, m), the A of each element; rows are rounded to their largest entry.
        products: (order, order), the index of x · y, as in h = A_y A_x h for the sequence x, y.
    """
    chosen = np.abs(transitions).argmax(-1)  # h'[i] = h[chosen[i]]
    signs = np.sign(np.take_along_axis(transitions, chosen[..., None], -1))[..., 0]
    # both[x, y, i] is the column that row i of A_y A_x selects, and sign[x, y, i] its sign.
    both = np.take_along_axis(chosen[:, None], chosen[None], -1)
    pairs = np.broadcast_to(chosen[None], both.shape)
    sign = np.take_along_axis(np.broadcast_to(signs[:, None], both.shape), pairs, -1) * signs[None]
    return float(((both == chosen[products]) & (sign == signs[products])).all(-1).mean())
