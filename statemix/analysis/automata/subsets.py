"""Sets of states, their preimages under letters, and the closures that a block has to hold.

    δ_a⁻¹(U) = {q : step[q, a] in U}            the states that letter a leads into U

A set U stands for the function "is the state in U?". The closure of U is the family of all sets
δ_w⁻¹(U) over words w, without those that are constant where w can be read.

States that no letter shares, such as those before and after a digit of a sum, are of different
*sorts*. If a letter can be read in all states of one sort, and leads into one sort, then a slot can
hold one function of each sort, and the closure is counted per sort.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from statemix.tasks.automaton import NO_STEP

__all__ = ["Letters", "Subset", "close", "find_sorts", "generate", "restrict", "separate"]

MONOID = 2000  # the largest monoid of words that is listed
Subset = NDArray[np.bool_]  # (states,)


@dataclass(frozen=True, eq=False)
class Letters:
    """Letters as partial maps of states, with the sort of each state.

    Args:
        step: next states (states, letters), without letters that are words over the others.
        sort: (states,).
        words: all maps of words (words, states), if there are few.
    """

    step: NDArray[np.int64]
    sort: NDArray[np.int64]
    words: NDArray[np.int64] | None = None


def find_sorts(step: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """The sort of each state (states,), or None if a letter cannot be read in all of a sort."""
    sort = np.arange(len(step))
    domains = [column != NO_STEP for column in step.T if (column != NO_STEP).any()]
    changed = True
    while changed:
        changed = False
        for domain in domains:
            joined = np.isin(sort, sort[domain])
            changed |= len(np.unique(sort[joined])) > 1
            sort[joined] = sort[joined].min()
    whole = all(len(np.unique(sort[domain])) == 1 for domain in domains) and all(
        domain[sort == sort[domain][0]].all() for domain in domains
    )
    targets = (sort[column[column != NO_STEP]] for column in step.T)
    if not whole or any(len(np.unique(target)) > 1 for target in targets):
        return None
    return np.unique(sort, return_inverse=True)[1].reshape(-1)


def generate(step: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Letters (states, letters) that generate all others, and the maps of all words, if few.

    The closure of a set under some letters is also closed under the words over them.
    """
    identity = np.arange(len(step))
    words = {identity.tobytes(): identity}
    columns = {c.tobytes(): c for c in np.ascontiguousarray(step.T) if (c != NO_STEP).any()}
    kept: list[NDArray[np.int64]] = []
    for key, column in columns.items():
        if len(words) > MONOID:
            kept.append(column)
        elif key not in words:
            kept.append(column)
            _extend(words, kept)
    letters = np.stack(kept, axis=1) if kept else step[:, :0]
    return letters, None if len(words) > MONOID else np.stack(list(words.values()))


def _extend(words: dict[bytes, NDArray[np.int64]], letters: list[NDArray[np.int64]]) -> None:
    """Add the maps of all words over `letters`, of which the last is new; stop beyond MONOID."""
    new = [(word, letters[-1:]) for word in words.values()]
    while new and len(words) <= MONOID:
        word, following = new.pop()
        for letter in following:
            longer = np.where(word == NO_STEP, NO_STEP, letter[word])
            if longer.tobytes() not in words:
                words[longer.tobytes()] = longer
                new.append((longer, letters))


def restrict(letters: Letters, subset: Subset) -> list[Subset]:
    """The parts of a set in each sort, without those that are empty or the full sort."""
    parts = []
    for sort in range(letters.sort.max() + 1):
        inside = letters.sort == sort
        if 0 < (subset & inside).sum() < inside.sum():
            parts.append(subset & inside)
    return parts


def close(letters: Letters, subset: Subset, cap: int) -> list[Subset] | None:
    """The closure of a set of states of one sort, or None if a sort has more than `cap` members."""
    domain = letters.step != NO_STEP
    found = {subset.tobytes(): subset}
    counts = Counter([int(letters.sort[subset.argmax()])])
    new = [subset]
    while new:
        before = new.pop()[letters.step] & domain
        kept = before.any(0) & (before != domain).any(0)
        for each in np.ascontiguousarray(before.T[kept]):
            if (key := each.tobytes()) not in found:
                found[key] = each
                new.append(each)
                counts[int(letters.sort[each.argmax()])] += 1
        if max(counts.values()) > cap:
            return None
    return list(found.values())


def separate(
    costs: Iterable[tuple[int, Subset]], sort: NDArray[np.int64], wanted: int
) -> tuple[int, list[Subset]] | None:
    """The least cost up to which the sets separate all states, and such sets; None if none do.

    Args:
        costs: the size of the closure of each set, and the set.
        sort: (states,); states of different sorts are separate at the cost of one.
        wanted: only the states 0 .. wanted − 1 must be separated.
    """
    names = np.unique(sort[:wanted], return_inverse=True)[1].reshape(-1)
    chosen: list[Subset] = []
    least = 1
    for cost, subset in sorted(costs, key=lambda item: item[0]):
        if names.max() + 1 == wanted:
            break
        finer = np.unique(2 * names + subset[:wanted], return_inverse=True)[1].reshape(-1)
        if finer.max() > names.max():
            names, least = finer, cost
            chosen.append(subset)
    return (least, chosen) if names.max() + 1 == wanted else None
