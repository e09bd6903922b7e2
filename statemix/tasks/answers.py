"""Tasks with a question about each word, asked at an empty token that follows the word.

With `answers="prefixes"`, the question is also asked at every letter that completes a valid word:

    word       1  0  1  1  empty  empty
    end        ·  ·  ·  ·    1      ·
    prefixes   1  1  0  1    1      ·

Training sequences have all lengths up to the requested one; shorter ones are padded with empty
tokens without a target.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from statemix.tasks.automaton import NO_STEP, Automaton
from statemix.tasks.options import check_choice, check_least
from statemix.tasks.task import IGNORE, Examples, Task, Tokens

__all__ = [
    "ANSWERS",
    "LENGTH",
    "Answers",
    "Generator",
    "Machine",
    "Words",
    "answer_task",
    "letters_of",
]

ANSWERS = ("end", "prefixes")
LENGTH = 40  # default length of training words, or the longest valid length below it
Generator = np.random.Generator
Words = Callable[[int, int, Generator], Tokens]  # (count, length, rng) to words (count, length)
# Words (count, length) to the answer after each letter, or IGNORE, of the same shape.
Answers = Callable[[Tokens], Tokens]


@dataclass(frozen=True, eq=False)
class Machine:
    """States of words over letters, and the class of a word that ends in each of them.

    Args:
        step: next states (states, letters), or NO_STEP where no word continues.
        classes: the class of each state (states,), or IGNORE where no valid word ends.
    """

    step: Tokens
    classes: Tokens
    start: int = 0


def answer_task(
    name: str,
    letters: int,
    classes: int,
    words: Words,
    answers: Answers,
    fits: Callable[[int], bool] = lambda length: length >= 1,
    lengths: str = "any from 1 on",
    asked: str = "end",
    machine: Machine | None = None,
    names: str = "",
    shortest: int = 1,
) -> Task:
    """Make a task that asks for one answer per word over `letters` tokens, or per prefix.

    Args:
        asked: "end" asks at the empty token, "prefixes" also after every valid prefix.
        machine: the states of words, from which the automaton is made.
        names: of the letters, separated by spaces.
        shortest: the length of the shortest training words.
    """
    check_choice(name, "answers", asked, ANSWERS)
    check_least(name, "shortest", shortest, 1)
    prefixes = asked == "prefixes"
    empty = letters
    solve = partial(place_answers, answers, empty, prefixes)

    return Task(
        name,
        letters + 1,
        classes,
        partial(draw_exact, words, solve, empty),
        max(filter(fits, range(1, LENGTH + 1))),
        solve=solve,
        lengths=lengths,
        fits=fits,
        train_draw=partial(draw_up_to, words, solve, fits, empty, shortest),
        automaton=None if machine is None else add_empty(machine, prefixes),
        letters=(*names.split(), "end") if names else (),
    )


def letters_of(count: int) -> Words:
    """Make a generator of words with independent, uniform letters."""
    return lambda rows, length, rng: rng.integers(0, count, (rows, length))


def draw_exact(
    words: Words, solve: Answers, empty: int, count: int, length: int, rng: Generator
) -> Examples:
    """Draw words of exactly `length` letters, followed by an empty token."""
    inputs = np.full((count, length + 1), empty)
    inputs[:, :-1] = words(count, length, rng)
    return Examples(inputs, solve(inputs))


def draw_up_to(
    words: Words,
    solve: Answers,
    fits: Callable[[int], bool],
    empty: int,
    shortest: int,
    count: int,
    length: int,
    rng: Generator,
) -> Examples:
    """Draw words of all valid lengths from `shortest` to `length`, followed by empty tokens."""
    choices = np.array([each for each in range(shortest, length + 1) if fits(each)])
    if not len(choices):
        raise ValueError(
            f"There are no words of {shortest} to {length} letters. Reduce the option `shortest`."
        )
    chosen = rng.choice(choices, count)
    inputs = np.full((count, length + 1), empty)
    for each in choices:
        rows = np.flatnonzero(chosen == each)
        inputs[rows, :each] = words(len(rows), int(each), rng)
    return Examples(inputs, solve(inputs))


def place_answers(answers: Answers, empty: int, prefixes: bool, inputs: Tokens) -> Tokens:
    """Make targets with the answer to each word at its first empty token, and to its prefixes."""
    targets = np.full_like(inputs, IGNORE)
    ends = (inputs == empty).argmax(1)
    for end in np.unique(ends):
        rows = np.flatnonzero(ends == end)
        found = answers(inputs[rows, :end])
        targets[rows, end] = found[:, -1]
        if prefixes:
            targets[rows, :end] = found
    return targets


def add_empty(machine: Machine, prefixes: bool) -> Automaton:
    """The automaton (states, letters + 1) that asks for a state's class at the empty token.

    With `prefixes`, each letter also asks for the class of the state to which it leads.
    """
    step, classes = machine.step, machine.classes
    reached = np.where(step == NO_STEP, IGNORE, classes[step])
    asked = reached if prefixes else np.full_like(step, IGNORE)
    ended = np.full_like(step[:, :1], NO_STEP)
    return Automaton(np.hstack([step, ended]), np.hstack([asked, classes[:, None]]), machine.start)
