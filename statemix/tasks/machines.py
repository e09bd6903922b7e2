"""Tasks that ask for the state of a small automaton at every step.

    flip_flop           letters write 0, write 1 and keep; predict the stored bit, which starts at 0
    random_automaton    a random table of transitions; predict the state
    permutation_reset   each letter permutes the states or resets to one of them; predict the state

Every finite automaton is a cascade of permutations and resets (Krohn and Rhodes), and a flip-flop
is the smallest cascade of resets.
"""

from functools import partial

import numpy as np

from statemix.tasks.answers import Answers, letters_of
from statemix.tasks.automaton import Automaton
from statemix.tasks.options import check_least
from statemix.tasks.task import Examples, Task, Tokens, register_task

__all__ = ["flip_flop", "permutation_reset", "random_automaton"]

KEEP = 2  # the letter of the flip-flop that is not a bit
Generator = np.random.Generator


@register_task("flip_flop")
def flip_flop() -> Task:
    """Predict the bit written last, at every step; before the first write it is 0."""
    step = np.array([[0, 1, 0], [0, 1, 1]])
    return _every_step("flip_flop", step, stored_bits)


@register_task("random_automaton")
def random_automaton(states: int = 4, letters: int = 3, seed: int = 0) -> Task:
    """Predict the state of a random automaton, all of whose states can be reached.

    Args:
        seed: seed of the transitions, which are part of the task.
    """
    _check("random_automaton", states, letters, seed)
    step = random_steps(states, letters, np.random.default_rng(seed))
    return _every_step("random_automaton", step)


@register_task("permutation_reset")
def permutation_reset(states: int = 4, letters: int = 3, seed: int = 0) -> Task:
    """Predict a state that each letter permutes or resets.

    The first letter is a permutation, the second a reset, and each other one either with the same
    probability. All states can be reached.

    Args:
        seed: seed of the transitions, which are part of the task.
    """
    _check("permutation_reset", states, letters, seed)
    rng = np.random.default_rng(seed)
    step = permutations_and_resets(states, letters, rng)
    while not _reaches_all(step):
        step = permutations_and_resets(states, letters, rng)
    return _every_step("permutation_reset", step)


def _check(task: str, states: int, letters: int, seed: int) -> None:
    check_least(task, "states", states, 2)
    check_least(task, "letters", letters, 2)
    check_least(task, "seed", seed, 0)


def _every_step(name: str, step: Tokens, solve: Answers | None = None) -> Task:
    """A task with uniform letters that asks for the next state (states, letters) at every step."""
    automaton = Automaton(step, step)
    answers = automaton.solve if solve is None else solve
    return Task(
        name,
        automaton.letters,
        automaton.states,
        partial(_draw, answers, automaton.letters),
        16,
        solve=answers,
        automaton=automaton,
    )


def _draw(answers: Answers, letters: int, count: int, length: int, rng: Generator) -> Examples:
    """Draw independent, uniform letters."""
    inputs = letters_of(letters)(count, length, rng)
    return Examples(inputs, answers(inputs))


def stored_bits(inputs: Tokens) -> Tokens:
    """The bit written last (count, length), or 0 before the first write."""
    times = np.arange(inputs.shape[1])
    written = np.maximum.accumulate(np.where(inputs == KEEP, -1, times), axis=1)
    bits = np.take_along_axis(inputs, written.clip(0), axis=1)
    return np.where(written < 0, 0, bits)


def random_steps(states: int, letters: int, rng: Generator) -> Tokens:
    """Uniform transitions (states, letters), but for a random tree that reaches every state."""
    step = rng.integers(0, states, (states, letters))
    free = np.ones(step.shape, dtype=bool)
    for new in range(1, states):
        edges = np.argwhere(free[:new])
        state, letter = edges[rng.integers(len(edges))]
        step[state, letter] = new
        free[state, letter] = False
    return step


def permutations_and_resets(states: int, letters: int, rng: Generator) -> Tokens:
    """Transitions (states, letters): a permutation, a reset, and then either at random."""
    resets = rng.random(letters) < 0.5
    resets[:2] = False, True
    columns = [
        np.full(states, rng.integers(states)) if reset else rng.permutation(states)
        for reset in resets
    ]
    return np.stack(columns, axis=1)


def _reaches_all(step: Tokens) -> bool:
    """True if words lead from state 0 to every state."""
    reached = np.zeros(len(step), dtype=bool)
    new = np.array([0])
    while len(new):
        reached[new] = True
        following = np.unique(step[new])
        new = following[~reached[following]]
    return bool(reached.all())
