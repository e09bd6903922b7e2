"""A bound on the smallest block from words that need slots of their own.

Let a slot hold a function g that separates the states q and r. For every word w that can lead to
both, g ∘ δ_w is not constant, so some slot must hold it. Two words w and w' can share that slot
only if

    g(δ_w(x)) = g(δ_w'(x))        for all states x in which both can be read,

which is impossible if the equivalence δ_w(x) ~ δ_w'(x), closed under transitivity, implies q ~ r.
Words of which no two can share a slot therefore need as many slots. For sums of products modulo a
prime n, these are the n² words that turn s + p into s + d p + k.
"""

import numpy as np
from numpy.typing import NDArray

from statemix.tasks.automaton import NO_STEP

__all__ = ["clique_bound"]

WORDS = 1500  # words that are listed, shorter ones first
TRIED = 150  # words of which a pair of states tries to find a clique
PAIRS = 8  # pairs of states that are tried


def clique_bound(step: NDArray[np.int64]) -> int:
    """A number of slots below which no block separates all states of a table (states, letters)."""
    words = _list_words(step)
    images = {word.tobytes(): frozenset(word.tolist()) - {NO_STEP} for word in words}
    words.sort(key=lambda word: len(images[word.tobytes()]))
    smallest = dict.fromkeys(images[word.tobytes()] for word in words)
    pairs = [tuple(sorted(image)[:2]) for image in smallest if len(image) > 1]
    best = 1
    for q, r in list(dict.fromkeys(pairs))[:PAIRS]:
        fit = [word.tolist() for word in words if {q, r} <= images[word.tobytes()]]
        best = max(best, _clique(fit[:TRIED], q, r))
    return best


def _list_words(step: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Different maps (states,) of words, shorter words first."""
    identity = np.arange(len(step))
    found = {identity.tobytes(): identity}
    new = [identity]
    while new and len(found) < WORDS:
        longer = [
            np.where(word == NO_STEP, NO_STEP, letter[word]) for word in new for letter in step.T
        ]
        fresh = {word.tobytes(): word for word in longer if word.tobytes() not in found}
        found |= fresh
        new = list(fresh.values())
    return list(found.values())[:WORDS]


def _clique(words: list[list[int]], q: int, r: int) -> int:
    """The number of words in a greedily chosen set of which no two can share a slot."""
    chosen: list[list[int]] = []
    for word in words:
        if all(_implies(word, other, q, r) for other in chosen):
            chosen.append(word)
    return len(chosen)


def _implies(word: list[int], other: list[int], q: int, r: int) -> bool:
    """True if word[x] ~ other[x] for all x implies q ~ r."""
    parents = list(range(len(word)))

    def root(state: int) -> int:
        while parents[state] != state:
            parents[state] = state = parents[parents[state]]
        return state

    for a, b in zip(word, other, strict=True):
        if NO_STEP not in (a, b):
            parents[root(a)] = root(b)
    return root(q) == root(r)
