"""The smallest block of slots that carries an automaton by copying.

In a block of m slots with hard gates, each letter a fills slot i either with the old value of some
slot f_a(i), or with a value that depends on a alone. If slot i holds g_i(q), a function of the
state q of the automaton, then

    copying means    g_i ∘ δ_a = g_{f_a(i)}        loading means    g_i ∘ δ_a is constant

wherever letter a can be read. The theorem, which docs/explanation/automata.md proves: a block
of m slots carries a family of functions if and only if it has at most m members that are not
constant, and is closed, up to constants, under composition with every letter. It suffices to
consider functions with the values 0 and 1, that is, sets of states. The smallest family with the
set U is the closure of U (`statemix.analysis.automata.subsets`). So

    m = the least number such that the sets with closures of at most m members separate all states.

A complement is another function, and counts. The number of blocks is not limited.
"""

from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from statemix.analysis.automata.bounds import lower_bound, upper_bound
from statemix.analysis.automata.cliques import clique_bound
from statemix.analysis.automata.exact import all_costs, is_small
from statemix.analysis.automata.minimal import minimise
from statemix.analysis.automata.subsets import (
    Letters,
    Subset,
    close,
    find_sorts,
    generate,
    separate,
)
from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["BlockSize", "Family", "smallest_block"]

Family = tuple[frozenset[int], ...]


@dataclass(frozen=True)
class BlockSize:
    """The smallest block that carries an automaton, or bounds on it.

    Args:
        lower: no smaller block carries the automaton with functions of its state.
        upper: blocks of this size carry it.
        families: one for each block, of at most `upper` sets of states. Slot i of a block holds
            whether the state of the minimised automaton is in set i.
    """

    lower: int
    upper: int
    families: tuple[Family, ...]

    @property
    def is_exact(self) -> bool:
        """True if the bounds meet."""
        return self.lower == self.upper


def smallest_block(automaton: Automaton) -> BlockSize:
    """The smallest block that carries the minimised automaton: exact if small, bounds if large."""
    minimal = minimise(automaton)
    return _solve(minimal, minimal.states)


def _solve(automaton: Automaton, wanted: int) -> BlockSize:
    """The smallest block that separates the states 0 .. wanted − 1."""
    if wanted == 1:
        return BlockSize(0, 0, ())
    sort = find_sorts(automaton.step)
    if sort is None:
        return _solve_partial(automaton)
    step, words = generate(automaton.step)
    letters = Letters(step, sort, words)
    lower = lower_bound(letters)
    found = upper_bound(automaton, letters, wanted, lower)
    upper, chosen = (_largest_family(sort), []) if found is None else found
    if lower < upper and is_small(letters):
        better = separate(all_costs(letters, upper - 1), sort, wanted)
        upper, chosen = (upper, chosen) if better is None else better
        lower = upper
    if lower < upper:
        lower = max(lower, clique_bound(letters.step))
    return BlockSize(lower, upper, _families(letters, chosen, upper, wanted))


def _solve_partial(automaton: Automaton) -> BlockSize:
    """Bounds for letters that can be read in some states of a sort, but not in all.

    From below, only the letters that can always be read; from above, all letters, where those that
    cannot be read lead to a further state, so that no freedom of choice remains.
    """
    step, answer, states = automaton.step, automaton.answer, automaton.states
    always = (step != NO_STEP).all(0)
    fewer = _solve(Automaton(step[:, always], answer[:, always]), states)
    sink = np.full_like(step[:1], states)
    total = np.vstack([np.where(step == NO_STEP, states, step), sink])
    more = _solve(Automaton(total, np.vstack([answer, answer[:1]])), states)
    words, _ = generate(step)
    every = Letters(words, np.zeros(states, dtype=np.int64))
    lower = max(fewer.lower, lower_bound(every), clique_bound(words))
    families = tuple(tuple(each - {states} for each in family) for family in more.families)
    return BlockSize(lower, more.upper, families)


def _largest_family(sort: NDArray[np.int64]) -> int:
    """The number of sets of states of one sort that are not constant, which always suffices."""
    return 2 ** int(np.bincount(sort).max()) - 2


def _families(letters: Letters, chosen: list[Subset], cap: int, wanted: int) -> tuple[Family, ...]:
    """One set for each sort of states but the first, and closures of some of the chosen sets.

    A closure whose members separate no further states is left out.
    """
    names = letters.sort[:wanted]
    families: list[Family] = [
        (frozenset(np.flatnonzero(letters.sort == sort).tolist()),)
        for sort in range(1, letters.sort.max() + 1)
    ]
    seen: set[bytes] = set()
    for subset in reversed(chosen):
        if subset.tobytes() in seen or names.max() + 1 == wanted:
            continue
        closure = close(letters, subset, cap) or []
        seen |= {each.tobytes() for each in closure}
        signs = np.stack([names, *(each[:wanted] for each in closure)])
        finer = np.unique(signs, axis=1, return_inverse=True)[1].reshape(-1)
        if finer.max() > names.max():
            families.append(_share_slots(letters, closure))
            names = finer
    return tuple(families)


def _share_slots(letters: Letters, closure: list[Subset]) -> Family:
    """Let each slot hold one set of each sort."""
    empty = np.zeros(len(letters.sort), dtype=bool)
    by_sort = [
        [each for each in closure if letters.sort[each.argmax()] == sort]
        for sort in range(letters.sort.max() + 1)
    ]
    return tuple(
        frozenset(np.flatnonzero(np.any(slot, axis=0)).tolist())
        for slot in zip_longest(*by_sort, fillvalue=empty)
    )
