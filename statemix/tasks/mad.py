"""Three tasks of the MAD suite: compression, selective copying, and in-context recall."""

from collections.abc import Callable
from functools import partial

import numpy as np

from statemix.tasks.options import check_choice, check_least
from statemix.tasks.task import IGNORE, Examples, Task, Tokens, register_task

__all__ = ["compress", "copy", "recall"]


@register_task("compress")
def compress(vocab: int = 16, score_all: bool = False) -> Task:
    """Compress a sequence into the state at its last token, from which a decoder reconstructs it.

    Args:
        score_all: also score the compression token, which is trivial, as the published code does.
    """
    check_least("compress", "vocab", vocab, 2)
    return Task(
        "compress",
        vocab,
        vocab,
        partial(draw_compress, vocab, score_all),
        64,
        solve=partial(solve_compress, vocab, score_all),
        lengths="from 2 on",
        fits=lambda length: length >= 2,
        model="autoencoder",
    )


def draw_compress(
    vocab: int, score_all: bool, count: int, length: int, rng: np.random.Generator
) -> Examples:
    """Draw uniform tokens, followed by the compression token."""
    inputs = rng.integers(0, vocab - 1, (count, length))
    inputs[:, -1] = vocab - 1
    return Examples(inputs, solve_compress(vocab, score_all, inputs))


def solve_compress(vocab: int, score_all: bool, inputs: Tokens) -> Tokens:
    """Targets equal the inputs, without the compression token unless `score_all`."""
    targets = inputs.copy()
    if not score_all:
        targets[:, -1] = IGNORE
    return targets


@register_task("copy")
def copy(vocab: int = 16, tokens: int = 16, placement: str = "uniform") -> Task:
    """Copy data tokens, scattered among blanks, in order after a copy token.

    Args:
        tokens: number of data tokens per sequence.
        placement: "uniform" chooses the positions of the data tokens uniformly. "mad", as in the
            MAD suite, puts each blank before a uniformly chosen data token, which is easier: the
            last data token always precedes the copy token.
    """
    check_least("copy", "vocab", vocab, 3)
    check_choice("copy", "placement", placement, PLACEMENTS)
    check_least("copy", "tokens", tokens, 1)
    shortest = 2 * tokens + 1
    return Task(
        "copy",
        vocab,
        vocab,
        partial(draw_copy, vocab, tokens, PLACEMENTS[placement]),
        max(64, shortest),
        solve=partial(solve_copy, vocab, tokens),
        lengths=f"from {shortest} on: {tokens} data tokens, the copy token, {tokens} blanks",
        fits=lambda length: length >= shortest,
    )


def place_uniformly(count: int, tokens: int, room: int, rng: np.random.Generator) -> Tokens:
    """Positions (count, tokens) of the data tokens, any of `room` choose `tokens` sets."""
    return np.sort(np.argsort(rng.random((count, room)), axis=1)[:, :tokens], axis=1)


def place_as_mad(count: int, tokens: int, room: int, rng: np.random.Generator) -> Tokens:
    """Positions of the data tokens if each blank precedes a uniformly chosen one of them."""
    gaps = rng.integers(0, tokens, (count, room - tokens)) + tokens * np.arange(count)[:, None]
    blanks = np.bincount(gaps.ravel(), minlength=count * tokens).reshape(count, tokens)
    return np.arange(tokens) + blanks.cumsum(1)


PLACEMENTS = {"uniform": place_uniformly, "mad": place_as_mad}


def draw_copy(
    vocab: int,
    tokens: int,
    place: Callable[[int, int, int, np.random.Generator], Tokens],
    count: int,
    length: int,
    rng: np.random.Generator,
) -> Examples:
    """Draw data tokens at the positions that `place` chooses before the copy token."""
    room = length - tokens - 1
    copy_token = vocab - 1
    blank = vocab - 2
    inputs = np.full((count, length), blank)
    places = place(count, tokens, room, rng)
    np.put_along_axis(inputs[:, :room], places, rng.integers(0, vocab - 2, (count, tokens)), axis=1)
    inputs[:, room] = copy_token
    return Examples(inputs, solve_copy(vocab, tokens, inputs))


def solve_copy(vocab: int, tokens: int, inputs: Tokens) -> Tokens:
    """Targets are the data tokens, at the last `tokens` positions."""
    targets = np.full_like(inputs, IGNORE)
    data = inputs < vocab - 2
    targets[:, -tokens:] = inputs[data].reshape(len(inputs), tokens)
    return targets


@register_task("recall")
def recall(vocab: int = 16, last_key: str = "position") -> Task:
    """Recall the value that follows a key from the key's earlier occurrence in the sequence.

    Args:
        last_key: how the last key is chosen among those presented before: "position" takes the key
            at a uniformly chosen earlier pair; "distinct", as in the MAD suite, takes each distinct
            key with the same probability.
    """
    check_least("recall", "vocab", vocab, 4)
    check_choice("recall", "last_key", last_key, LAST_KEYS)
    if vocab % 2:
        raise ValueError(
            "The option `vocab` of the task 'recall' must be even (half keys, half values), "
            f"got {vocab}."
        )
    return Task(
        "recall",
        vocab,
        vocab,
        partial(draw_recall, vocab, LAST_KEYS[last_key], False),
        64,
        solve=partial(solve_recall, vocab),
        lengths="even ones from 4 on",
        fits=lambda length: length >= 4 and length % 2 == 0,
        train_draw=partial(draw_recall, vocab, LAST_KEYS[last_key], True),
    )


def repeat_pair(keys: Tokens, half: int, rng: np.random.Generator) -> Tokens:
    """The key of a uniformly chosen pair in each row of `keys` (count, pairs)."""
    count, pairs = keys.shape
    return keys[np.arange(count), rng.integers(0, pairs, count)]


def repeat_distinct(keys: Tokens, half: int, rng: np.random.Generator) -> Tokens:
    """One of the distinct keys in each row, all with the same probability."""
    presented = np.zeros((len(keys), half), dtype=bool)
    np.put_along_axis(presented, keys, True, axis=1)
    return np.where(presented, rng.random(presented.shape), -1.0).argmax(1)


LAST_KEYS = {"position": repeat_pair, "distinct": repeat_distinct}


def draw_recall(
    vocab: int,
    repeat: Callable[[Tokens, int, np.random.Generator], Tokens],
    next_token: bool,
    count: int,
    length: int,
    rng: np.random.Generator,
) -> Examples:
    """Draw key-value pairs with replacement; the last key repeats an earlier one.

    With `next_token`, as in training, every next token is a target.
    """
    half = vocab // 2
    pairs = length // 2
    values = half + rng.integers(0, half, (count, half))
    keys = rng.integers(0, half, (count, pairs))
    keys[:, -1] = repeat(keys[:, :-1], half, rng)
    sequence = np.stack([keys, np.take_along_axis(values, keys, 1)], 2).reshape(count, length)
    inputs = sequence[:, :-1]
    return Examples(inputs, sequence[:, 1:] if next_token else solve_recall(vocab, inputs))


def solve_recall(vocab: int, inputs: Tokens) -> Tokens:
    """Targets are the values of all keys that occurred earlier in their sequence."""
    count, length = inputs.shape
    targets = np.full_like(inputs, IGNORE)
    known = np.full((count, vocab // 2), IGNORE)
    rows = np.arange(count)
    for t in range(0, length, 2):
        targets[:, t] = known[rows, inputs[:, t]]
        if t + 1 < length:
            known[rows, inputs[:, t]] = inputs[:, t + 1]
    return targets
