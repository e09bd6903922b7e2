"""Arithmetic modulo n: words, their values, and the automaton of sums of products.

    2 + 3 · 4 − 1        digits, and + − · with the usual precedence
    ((−2) + (3 · 4))     fully bracketed

A sum of products is read from left to right with two numbers, the total s of the finished products
and the current product p with its sign:

    after a digit      s, p           the value is s + p
    + or −             s + p, ±1      a digit d makes the product ±d
    ·                  s, p           a digit d makes the product p d

so the automaton has n² states after a digit and n² before one, and starts before a digit with s = 0
and p = 1. Tokens are the digits 0 .. n − 1, then +, −, ·, and two brackets.
"""

import numpy as np

from statemix.tasks.answers import Generator, Machine
from statemix.tasks.automaton import NO_STEP
from statemix.tasks.task import IGNORE, Tokens

__all__ = [
    "MODULUS",
    "draw_bracketed",
    "draw_sums",
    "evaluate_bracketed",
    "evaluate_sums",
    "sums_machine",
    "values_of_sums",
]

MODULUS = 5
PLUS, MINUS, TIMES, OPEN, CLOSE = range(MODULUS, MODULUS + 5)


def sums_machine(modulus: int = MODULUS) -> Machine:
    """The 2 n² states of sums of products over n digits and three operators; n is the modulus.

    State s n + p is before a digit, and n² + s n + p is after one.
    """
    s, p = (each.ravel() for each in np.indices((modulus, modulus)))
    half = modulus**2
    step = np.full((2 * half, modulus + 3), NO_STEP)
    for digit in range(modulus):
        step[:half, digit] = half + s * modulus + p * digit % modulus
    value = (s + p) % modulus
    step[half:, modulus] = value * modulus + 1 % modulus
    step[half:, modulus + 1] = value * modulus + modulus - 1
    step[half:, modulus + 2] = s * modulus + p
    return Machine(step, np.concatenate([np.full(half, IGNORE), value]), start=1 % modulus)


def draw_sums(count: int, length: int, rng: Generator) -> Tokens:
    """Draw digits at even positions and operators at odd positions."""
    words = rng.integers(0, MODULUS, (count, length))
    words[:, 1::2] = rng.integers(PLUS, TIMES + 1, (count, length // 2))
    return words


def values_of_sums(words: Tokens) -> Tokens:
    """The value of each prefix (count, length) that ends with a digit, and IGNORE after others."""
    total = np.zeros(len(words), dtype=np.int64)
    term = words[:, 0].copy()
    values = np.full_like(words, IGNORE)
    values[:, 0] = term
    for t in range(1, words.shape[1] - 1, 2):
        sign = words[:, t]
        digit = words[:, t + 1]
        total = np.where(sign == TIMES, total, total + term) % MODULUS
        term = (
            np.where(sign == TIMES, term * digit, np.where(sign == MINUS, -digit, digit)) % MODULUS
        )
        values[:, t + 1] = (total + term) % MODULUS
    return values


def evaluate_sums(words: Tokens) -> Tokens:
    """Evaluate each word from left to right, with a total and a signed current product."""
    return values_of_sums(words)[:, -1]


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
    return np.array([_evaluate_from(word, 0)[0] for word in words.tolist()], dtype=np.int64)


def _evaluate_from(word: list[int], at: int) -> tuple[int, int]:
    """Evaluate the expression that starts at index `at`; return its value and its end index."""
    token = word[at]
    if token < MODULUS:
        return token, at + 1
    if token == MINUS:
        value, end = _evaluate_from(word, at + 1)
        return -value % MODULUS, end
    value, end = _evaluate_from(word, at + 1)
    if word[end] != CLOSE:
        sign = word[end]
        right, end = _evaluate_from(word, end + 1)
        value = {PLUS: value + right, MINUS: value - right, TIMES: value * right}[sign] % MODULUS
    return value, end + 1
