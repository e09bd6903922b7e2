"""The smallest automaton with the same answers, by Moore's partition refinement.

Two states are equivalent if every word has the same answers from both. The partition starts from
the answers to one letter, and is refined until equivalent states have equivalent next states:

    q ~ r    if    answer[q, a] = answer[r, a]  and  step[q, a] ~ step[r, a]    for all letters a

IGNORE and NO_STEP count as values of their own: a question is never equivalent to no question.
"""

import numpy as np
from numpy.typing import NDArray

from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["minimise"]


def minimise(automaton: Automaton) -> Automaton:
    """The automaton of the classes of reachable, equivalent states, numbered from the start.

    Classes are numbered in the order in which words reach them, shorter words first. So two
    automata answer alike if and only if their minimised tables are equal.
    """
    reached = _in_order(automaton.step, automaton.start)
    step = _renumber(automaton.step, reached)
    answer = automaton.answer[reached]
    classes = _equivalent(step, answer)
    _, first = np.unique(classes, return_index=True)
    merged = np.where(step == NO_STEP, NO_STEP, classes[step])[first]
    order = _in_order(merged, int(classes[0]))
    return Automaton(_renumber(merged, order), answer[first][order])


def _in_order(step: NDArray[np.int64], start: int) -> NDArray[np.int64]:
    """The reachable states of a table (states, letters), in the order of a breadth-first search."""
    found = {start: None}
    new = [start]
    while new:
        following = dict.fromkeys(step[new].ravel().tolist())
        new = [q for q in following if q != NO_STEP and q not in found]
        found |= dict.fromkeys(new)
    return np.array(list(found))


def _renumber(step: NDArray[np.int64], kept: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows `kept` of a table of next states, with `kept[i]` renamed to i."""
    names = np.full(len(step) + 1, NO_STEP)  # the last entry renames NO_STEP
    names[kept] = np.arange(len(kept))
    return names[step[kept]]


def _equivalent(step: NDArray[np.int64], answer: NDArray[np.int64]) -> NDArray[np.int64]:
    """The class of each state (states,) under the coarsest equivalence."""
    classes = _number_rows(answer)
    count = 0
    while count < classes.max() + 1:
        count = classes.max() + 1
        following = np.where(step == NO_STEP, NO_STEP, classes[step])
        classes = _number_rows(np.hstack([classes[:, None], following]))
    return classes


def _number_rows(rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The same number for equal rows, and different numbers for different ones."""
    names: dict[bytes, int] = {}
    found = [names.setdefault(row.tobytes(), len(names)) for row in np.ascontiguousarray(rows)]
    return np.array(found, dtype=np.int64)
