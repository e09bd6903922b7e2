"""Regular and context-free tasks after Delétang et al.: one answer per sequence.

    parity               bits; predict whether an odd number of them is set
    cycle_nav            moves −1, 0, +1 on a cycle of five; predict the final position
    mod_arith            digits 0–4 and + − · with the usual precedence; predict the value modulo 5
    mod_arith_brackets   the same, fully bracketed and with unary minus

The answer is predicted at an empty token that follows the sequence. Training sequences have all
lengths up to the requested one; shorter ones are padded with empty tokens without a target.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from statemix.tasks.task import IGNORE, Examples, Task, Tokens, register_task

__all__ = [
    "cycle_nav",
    "evaluate_bracketed",
    "evaluate_sums",
    "mod_arith",
    "mod_arith_brackets",
    "parity",
]

MODULUS = 5
LENGTH = 40  # default length of training words, or the longest valid length below it
PLUS, MINUS, TIMES, OPEN, CLOSE = range(MODULUS, MODULUS + 5)
Generator = np.random.Generator
Words = Callable[[int, int, Generator], Tokens]  # (count, length, rng) to words (count, length)
Answers = Callable[[Tokens], Tokens]  # words to answers (count,)


def answer_task(
    name: str,
    letters: int,
    classes: int,
    words: Words,
    answers: Answers,
    fits: Callable[[int], bool],
    lengths: str,
) -> Task:
    """Make a task that maps each word over `letters` tokens to one answer."""
    empty = letters
    solve = partial(place_answers, answers, empty)

    def draw(count: int, length: int, rng: Generator) -> Examples:
        inputs = np.full((count, length + 1), empty)
        inputs[:, :-1] = words(count, length, rng)
        return Examples(inputs, solve(inputs))

    def draw_up_to(count: int, length: int, rng: Generator) -> Examples:
        inputs = draw_padded(words, fits, empty, count, length, rng)
        return Examples(inputs, solve(inputs))

    return Task(
        name,
        letters + 1,
        classes,
        draw,
        max(filter(fits, range(1, LENGTH + 1))),
        solve=solve,
        lengths=lengths,
        fits=fits,
        train_draw=draw_up_to,
    )


def draw_padded(
    words: Words,
    fits: Callable[[int], bool],
    empty: int,
    count: int,
    length: int,
    rng: Generator,
) -> Tokens:
    """Draw words of all valid lengths up to `length`, followed by at least one empty token."""
    choices = np.array([each for each in range(1, length + 1) if fits(each)])
    chosen = rng.choice(choices, count)
    inputs = np.full((count, length + 1), empty)
    for each in choices:
        rows = np.flatnonzero(chosen == each)
        inputs[rows, :each] = words(len(rows), int(each), rng)
    return inputs


def place_answers(answers: Answers, empty: int, inputs: Tokens) -> Tokens:
    """Make targets with the answer to each word at its first empty token."""
    targets = np.full_like(inputs, IGNORE)
    ends = (inputs == empty).argmax(1)
    for end in np.unique(ends):
        rows = np.flatnonzero(ends == end)
        targets[rows, end] = answers(inputs[rows, :end])
    return targets


@register_task("parity")
def parity() -> Task:
    """Predict whether an odd number of bits is set."""
    return answer_task(
        "parity",
        2,
        2,
        letters_of(2),
        lambda words: words.sum(1) % 2,
        lambda length: length >= 1,
        "any from 1 on",
    )


@register_task("cycle_nav")
def cycle_nav(size: int = MODULUS) -> Task:
    """Predict where a walk with steps −1, 0 and +1 on a cycle of `size` positions ends."""
    if size < 2:
        raise ValueError(
            f"The option `size` of the task 'cycle_nav' must be at least 2, got {size}."
        )
    answers: Answers = lambda words: (words - 1).sum(1) % size  # noqa: E731
    return answer_task(
        "cycle_nav", 3, size, letters_of(3), answers, lambda length: length >= 1, "any from 1 on"
    )


@register_task("mod_arith")
def mod_arith() -> Task:
    """Evaluate a sum of products modulo 5."""
    return answer_task(
        "mod_arith",
        MODULUS + 3,
        MODULUS,
        draw_sums,
        evaluate_sums,
        lambda length: length % 2 == 1,
        "odd ones",
    )


@register_task("mod_arith_brackets")
def mod_arith_brackets() -> Task:
    """Evaluate a fully bracketed expression modulo 5."""
    return answer_task(
        "mod_arith_brackets",
        MODULUS + 5,
        MODULUS,
        draw_bracketed,
        evaluate_bracketed,
        lambda length: length >= 1,
        "any from 1 on",
    )


def letters_of(count: int) -> Words:
    """Make a generator of words with independent, uniform letters."""
    return lambda rows, length, rng: rng.integers(0, count, (rows, length))


def draw_sums(count: int, length: int, rng: Generator) -> Tokens:
    """Draw digits at even positions and operators at odd positions."""
    words = rng.integers(0, MODULUS, (count, length))
    words[:, 1::2] = rng.integers(PLUS, TIMES + 1, (count, length // 2))
    return words


def evaluate_sums(words: Tokens) -> Tokens:
    """Evaluate from left to right, with a running total and a signed current product."""
    total = np.zeros(len(words), dtype=np.int64)
    term = words[:, 0].copy()
    for t in range(1, words.shape[1], 2):
        sign = words[:, t]
        digit = words[:, t + 1]
        total = np.where(sign == TIMES, total, total + term) % MODULUS
        term = (
            np.where(sign == TIMES, term * digit, np.where(sign == MINUS, -digit, digit)) % MODULUS
        )
    return (total + term) % MODULUS


def draw_bracketed(count: int, length: int, rng: Generator) -> Tokens:
    """Draw d, −d, (d), (−d), or (left ∘ right) with a uniform split of the length."""
    words = np.empty((count, length), dtype=np.int64)
    digits = rng.integers(0, MODULUS, count)
    if length <= 2:  # a single digit overwrites the minus
        words[:, 0] = MINUS
        words[:, -1] = digits
        return words
    words[:, 0] = OPEN
    words[:, -1] = CLOSE
    if length <= 4:
        words[:, 1] = MINUS
        words[:, -2] = digits
        return words
    lefts = rng.integers(1, length - 3, count)
    for left in np.unique(lefts):
        rows = np.flatnonzero(lefts == left)
        words[rows, 1 : 1 + left] = draw_bracketed(len(rows), int(left), rng)
        words[rows, 1 + left] = rng.integers(PLUS, TIMES + 1, len(rows))
        words[rows, 2 + left : -1] = draw_bracketed(len(rows), int(length - 3 - left), rng)
    return words


def evaluate_bracketed(words: Tokens) -> Tokens:
    """Evaluate each word by recursive descent."""
    return np.array([evaluate_from(word, 0)[0] for word in words.tolist()], dtype=np.int64)


def evaluate_from(word: list[int], at: int) -> tuple[int, int]:
    """Evaluate the expression that starts at index `at`; return its value and its end index."""
    token = word[at]
    if token < MODULUS:
        return token, at + 1
    if token == MINUS:
        value, end = evaluate_from(word, at + 1)
        return -value % MODULUS, end
    value, end = evaluate_from(word, at + 1)
    if word[end] != CLOSE:
        sign = word[end]
        right, end = evaluate_from(word, end + 1)
        value = {PLUS: value + right, MINUS: value - right, TIMES: value * right}[sign] % MODULUS
    return value, end + 1
