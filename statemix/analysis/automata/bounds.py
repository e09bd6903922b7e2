"""Bounds on the smallest block of an automaton with too many states to enumerate all sets.

From below: a word that moves L states around a cycle moves any family of their functions around it.
If L has the factor p^k, then two states that are L / p apart are separated only by a function whose
period has that factor, and its p^k shifts, or more, must all be held.

From below, for groups: letters permute a family, so a block carries a homomorphism into S_m. If
all normal subgroups but the trivial one share an element, then one of the homomorphisms is
injective, and the order of the group divides m!.

From above: the closures of single states, of the states with a given answer, of the states that
up to three letters reach, and of random sets. For a group the third are the cosets of subgroups.
"""

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from statemix.analysis.automata.subsets import Letters, Subset, close, restrict, separate
from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["lower_bound", "upper_bound"]

CAP = 1024  # the largest closure that is computed
WORK = 50_000  # the members of closures that turn out too large, for each kind of set
SAMPLES = 200  # random words, random choices of letters, and random sets
COLUMNS = 16  # letters whose answers are tried


def lower_bound(letters: Letters) -> int:
    """A number of slots below which no block carries the letters."""
    words = _random_words(letters.step) if letters.words is None else letters.words
    lengths = {length for word in words for length in _cycle_lengths(word.tolist())}
    return max(1, _group_bound(letters.words), *map(_largest_prime_power, lengths))


def upper_bound(
    automaton: Automaton, letters: Letters, wanted: int, least: int
) -> tuple[int, list[Subset]] | None:
    """A block size, and sets whose closures fit and separate the states; None if none are found.

    The search ends early if it finds a block of the size `least`.
    """
    costs: dict[bytes, tuple[int, Subset]] = {}
    best = None
    cap = CAP
    for seeds in _seeds(automaton):
        _add_closures(letters, seeds, cap, costs)
        best = separate(costs.values(), letters.sort, wanted)
        if best is not None and best[0] <= least:
            break
        cap = cap if best is None else best[0] - 1
    return best


def _add_closures(
    letters: Letters, seeds: Iterable[Subset], cap: int, costs: dict[bytes, tuple[int, Subset]]
) -> None:
    """Add the members of the closures of `seeds` to `costs`, until too many are too large."""
    left = WORK
    for part in (part for seed in seeds for part in restrict(letters, seed)):
        if part.tobytes() in costs:
            continue
        family = close(letters, part, cap)
        if family is None:
            left -= cap
            if left < 0:
                return
            continue
        cost = int(np.bincount([letters.sort[each.argmax()] for each in family]).max())
        for each in family:
            known = costs.get(each.tobytes(), (cost, each))
            costs[each.tobytes()] = min(cost, known[0]), each


def _seeds(automaton: Automaton) -> Iterator[Iterable[Subset]]:
    """Sets of states whose closures may be small, the most promising first."""
    rng = np.random.default_rng(0)
    columns = np.unique(automaton.answer, axis=1)[:, :COLUMNS].T
    yield (column == answer for column in columns for answer in np.unique(column))
    yield np.eye(automaton.states, dtype=bool)
    step = automaton.step
    yield (_reached(step[:, [letter]]) for letter in range(automaton.letters))
    for count in (2, 3):
        chosen = rng.integers(0, automaton.letters, (SAMPLES, count))
        yield (_reached(step[:, some]) for some in chosen)
    yield rng.random((SAMPLES, automaton.states)) < rng.random((SAMPLES, 1))


def _reached(step: NDArray[np.int64]) -> Subset:
    """The states (states,) that words over these letters (states, letters) reach from state 0."""
    following = step.tolist()
    found = {0}
    new = [0]
    while new:
        fresh = {q for q in following[new.pop()] if q != NO_STEP} - found
        found |= fresh
        new.extend(fresh)
    reached = np.zeros(len(step), dtype=bool)
    reached[list(found)] = True
    return reached


def _random_words(step: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The maps (states,) of all letters and of some longer words."""
    rng = np.random.default_rng(0)
    words = list(step.T)
    for length in rng.integers(2, 9, SAMPLES):
        word = np.arange(len(step))
        for letter in rng.integers(0, step.shape[1], length):
            word = np.where(word == NO_STEP, NO_STEP, step[word, letter])
        words.append(word)
    return words


def _cycle_lengths(word: list[int]) -> set[int]:
    """The lengths of the cycles of a partial map."""
    lengths = set()
    seen: dict[int, tuple[int, int]] = {}  # state to (walk, position)
    for walk, first in enumerate(range(len(word))):
        q = first
        for position in itertools.count():
            if q == NO_STEP or q in seen:
                break
            seen[q] = walk, position
            q = word[q]
        if q != NO_STEP and seen[q][0] == walk:
            lengths.add(position - seen[q][1])
    return lengths


def _largest_prime_power(number: int) -> int:
    """The largest power of a prime that divides `number`."""
    largest, factor = 1, 2
    while number > 1:
        power = 1
        while number % factor == 0:
            number //= factor
            power *= factor
        largest = max(largest, power)
        factor += 1
    return largest


def _group_bound(words: NDArray[np.int64] | None) -> int:
    """The least m such that the order of a regular group divides m!, if the theorem applies."""
    if (
        words is None
        or words.shape[0] != words.shape[1]
        or len(set(words[:, 0].tolist())) < len(words)
    ):
        return 1
    if (np.sort(words, axis=1) != np.arange(len(words))).any():
        return 1
    table = words[np.argsort(words[:, 0])].T  # table[i, j] = i · j, with identity 0
    if (table == table.T).all() or not _is_monolithic(table):
        return 1
    return next(m for m in itertools.count(1) if math.factorial(m) % len(table) == 0)


def _is_monolithic(table: NDArray[np.int64]) -> bool:
    """True if all normal subgroups of a group but the trivial one share another element."""
    size = len(table)
    inverse = (table == 0).argmax(1)
    shared = np.ones(size, dtype=bool)
    seen = np.zeros(size, dtype=bool)
    seen[0] = True
    while not seen.all() and shared.sum() > 1:
        x = int(seen.argmin())
        conjugates = np.unique(table[table[inverse, x], np.arange(size)])
        seen[conjugates] = True
        shared &= _reached(table[:, conjugates])
    return bool(shared.sum() > 1)
