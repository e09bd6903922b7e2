"""Regular and context-free tasks after Delétang et al.: a question about each word.

    parity               bits; predict whether an odd number of them is set
    even_pairs           bits; predict whether the number of pairs 01 and 10 is odd
    cycle_nav            moves −1, 0, +1 on a cycle of five; predict the final position
    mod_arith            digits 0–4 and + − · with the usual precedence; predict the value modulo 5
    mod_arith_brackets   the same, fully bracketed and with unary minus

The answer is predicted at an empty token that follows the word, or, with `answers="prefixes"`,
also at every letter that completes a valid word.
"""

import numpy as np

from statemix.tasks.answers import Answers, Machine, answer_task, letters_of
from statemix.tasks.arithmetic import (
    MODULUS,
    draw_bracketed,
    draw_sums,
    evaluate_bracketed,
    evaluate_sums,
    sums_machine,
    values_of_sums,
)
from statemix.tasks.options import check_least
from statemix.tasks.task import IGNORE, Task, Tokens, register_task

__all__ = [
    "cycle_nav",
    "evaluate_bracketed",
    "evaluate_sums",
    "even_pairs",
    "mod_arith",
    "mod_arith_brackets",
    "parity",
]


@register_task("parity")
def parity(answers: str = "end", shortest: int = 1) -> Task:
    """Predict whether an odd number of bits is set.

    Args:
        answers: "end" asks for the answer after the word, "prefixes" also after every letter.
        shortest: the length of the shortest training words.
    """
    machine = Machine(np.array([[0, 1], [1, 0]]), np.array([0, 1]))
    return answer_task(
        "parity",
        2,
        2,
        letters_of(2),
        odd_counts,
        asked=answers,
        machine=machine,
        shortest=shortest,
    )


@register_task("even_pairs")
def even_pairs(answers: str = "end", shortest: int = 1) -> Task:
    """Predict whether the number of pairs 01 and 10 is even, class 0, or odd, class 1.

    The number is even if 01 and 10 occur equally often, that is, if the first bit equals the last.

    Args:
        answers: "end" asks for the answer after the word, "prefixes" also after every letter.
        shortest: the length of the shortest training words.
    """
    # State 0 is the start, and state 1 + 2 first + last follows the first letter.
    machine = Machine(
        np.array([[1, 4], [1, 2], [1, 2], [3, 4], [3, 4]]), np.array([IGNORE, 0, 1, 1, 0])
    )
    return answer_task(
        "even_pairs",
        2,
        2,
        letters_of(2),
        odd_pairs,
        asked=answers,
        machine=machine,
        shortest=shortest,
    )


@register_task("cycle_nav")
def cycle_nav(size: int = MODULUS, answers: str = "end", shortest: int = 1) -> Task:
    """Predict where a walk with steps −1, 0 and +1 on a cycle of `size` positions ends.

    Args:
        answers: "end" asks for the position after the walk, "prefixes" also after every step.
        shortest: the length of the shortest training words.
    """
    check_least("cycle_nav", "size", size, 2)
    positions: Answers = lambda words: (words - 1).cumsum(1) % size  # noqa: E731
    places = np.arange(size)
    machine = Machine(np.add.outer(places, np.arange(-1, 2)) % size, places)
    return answer_task(
        "cycle_nav",
        3,
        size,
        letters_of(3),
        positions,
        asked=answers,
        machine=machine,
        shortest=shortest,
    )


@register_task("mod_arith")
def mod_arith(answers: str = "end", shortest: int = 1) -> Task:
    """Evaluate a sum of products modulo 5.

    Args:
        answers: "end" asks for the value after the word, "prefixes" also after every digit.
        shortest: the length of the shortest training words.
    """
    return answer_task(
        "mod_arith",
        MODULUS + 3,
        MODULUS,
        draw_sums,
        values_of_sums,
        lambda length: length % 2 == 1,
        "odd ones",
        asked=answers,
        machine=sums_machine(),
        names="0 1 2 3 4 + − ·",
        shortest=shortest,
    )


@register_task("mod_arith_brackets")
def mod_arith_brackets(shortest: int = 1) -> Task:
    """Evaluate a fully bracketed expression modulo 5.

    Args:
        shortest: the length of the shortest training words.
    """
    return answer_task(
        "mod_arith_brackets",
        MODULUS + 5,
        MODULUS,
        draw_bracketed,
        values_of_bracketed,
        shortest=shortest,
    )


def odd_counts(words: Tokens) -> Tokens:
    """For each prefix (count, length), 1 if an odd number of its bits is set, and 0 otherwise."""
    return words.cumsum(1) % 2


def odd_pairs(words: Tokens) -> Tokens:
    """For each prefix (count, length), 1 if it has an odd number of pairs 01 and 10, else 0."""
    targets = np.zeros_like(words)
    targets[:, 1:] = (words[:, 1:] != words[:, :-1]).cumsum(1) % 2
    return targets


def values_of_bracketed(words: Tokens) -> Tokens:
    """The value of each word in its last column; no proper prefix is a word."""
    values = np.full_like(words, IGNORE)
    values[:, -1] = evaluate_bracketed(words)
    return values
