"""The size of the closure of every set of states, for automata with few states.

Sets of one sort are bit masks, and all sets of all sorts are the nodes of one graph, whose edges
lead from a set to its preimages. The size of a closure is the number of nodes that are reached.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from statemix.analysis.automata.subsets import Letters, Subset
from statemix.tasks.automaton import NO_STEP

__all__ = ["all_costs", "is_small"]

SUBSETS = 2**16  # enumerate up to this many sets


def is_small(letters: Letters) -> bool:
    """True if all sets of states can be enumerated."""
    return sum(2 ** len(each) for each in _members(letters)) <= SUBSETS


def all_costs(letters: Letters, cap: int) -> Iterator[tuple[int, Subset]]:
    """All sets whose closures have at most `cap` members, with their sizes.

    A set and its complement have closures of the same size, so only sets without the first state
    of their sort are listed.
    """
    members = _members(letters)
    offsets = np.cumsum([0, *(2 ** len(each) for each in members)])
    graph = [[int(x) for x in row if x >= 0] for row in _preimages(letters, members, offsets)]
    sorts = np.repeat(np.arange(len(members)), np.diff(offsets)).tolist()
    large: set[int] = set()
    for sort, each in enumerate(members):
        for mask in range(2, 2 ** len(each) - 1, 2):
            cost = _cost(int(offsets[sort]) + mask, graph, sorts, cap, large)
            if cost:
                subset = np.zeros(len(letters.sort), dtype=bool)
                subset[each] = (mask >> np.arange(len(each))) & 1
                yield cost, subset


def _members(letters: Letters) -> list[NDArray[np.int64]]:
    """The states of each sort."""
    return [np.flatnonzero(letters.sort == sort) for sort in range(letters.sort.max() + 1)]


def _preimages(
    letters: Letters, members: list[NDArray[np.int64]], offsets: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The preimage of each set under each letter (sets, letters), or −1 where it is constant."""
    found = np.full((offsets[-1], letters.step.shape[1]), -1)
    for letter, column in enumerate(letters.step.T):
        source = letters.sort[(column != NO_STEP).argmax()]
        states = members[source]
        target = letters.sort[column[states[0]]]
        masks = np.arange(2 ** len(members[target]))
        before = np.zeros_like(masks)
        for i, bit in enumerate(np.searchsorted(members[target], column[states])):
            before |= ((masks >> bit) & 1) << i
        changing = (before > 0) & (before < 2 ** len(states) - 1)
        found[offsets[target] + masks, letter] = np.where(changing, offsets[source] + before, -1)
    return found


def _cost(root: int, graph: list[list[int]], sorts: list[int], cap: int, large: set[int]) -> int:
    """The size of the closure of `root`, or 0 and an entry in `large` if it exceeds `cap`."""
    counts = [0] * (sorts[-1] + 1)
    counts[sorts[root]] = 1
    found = {root}
    new = [root]
    while new:
        for node in graph[new.pop()]:
            if node not in found:
                counts[sorts[node]] += 1
                if node in large or counts[sorts[node]] > cap:
                    large.add(root)
                    return 0
                found.add(node)
                new.append(node)
    return max(counts)
