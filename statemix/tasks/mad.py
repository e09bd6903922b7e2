"""Three tasks of the MAD suite: compression, selective copying, and in-context recall."""

from functools import partial

import numpy as np

from statemix.tasks.task import IGNORE, Examples, Task, Tokens, register_task


@register_task("compress")
def compress(vocab: int = 16, score_all: bool = False) -> Task:
    """A sequence and then one token at which the state has to hold it all; the decoder spells it out again.

    Args:
        score_all: score the compression token too, one free class, as published code does.
    """
    check_vocab("compress", vocab, 2)
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
    inputs = rng.integers(0, vocab - 1, (count, length))
    inputs[:, -1] = vocab - 1
    return Examples(inputs, solve_compress(vocab, score_all, inputs))


def solve_compress(vocab: int, score_all: bool, inputs: Tokens) -> Tokens:
    targets = inputs.copy()
    if not score_all:
        targets[:, -1] = IGNORE
    return targets


@register_task("copy")
def copy(vocab: int = 16, tokens: int = 16) -> Task:
    """Data tokens scattered among blanks, a copy token, and then blanks, at which the data is wanted in order.

    Args:
        tokens: data tokens of a sequence.
    """
    check_vocab("copy", vocab, 3)
    if tokens < 1:
        raise ValueError(
            f"The option `tokens` of the task 'copy' must be at least 1, got {tokens}."
        )
    shortest = 2 * tokens + 1
    return Task(
        "copy",
        vocab,
        vocab,
        partial(draw_copy, vocab, tokens),
        max(64, shortest),
        solve=partial(solve_copy, vocab, tokens),
        lengths=f"from {shortest} on: {tokens} data tokens, the copy token, {tokens} blanks",
        fits=lambda length: length >= shortest,
    )


def draw_copy(
    vocab: int, tokens: int, count: int, length: int, rng: np.random.Generator
) -> Examples:
    """Every way to scatter the data over the first part is as likely as any other."""
    copy_token, blank, room = vocab - 1, vocab - 2, length - tokens - 1
    inputs = np.full((count, length), blank)
    places = np.sort(np.argsort(rng.random((count, room)), axis=1)[:, :tokens], axis=1)
    np.put_along_axis(inputs[:, :room], places, rng.integers(0, vocab - 2, (count, tokens)), axis=1)
    inputs[:, room] = copy_token
    return Examples(inputs, solve_copy(vocab, tokens, inputs))


def solve_copy(vocab: int, tokens: int, inputs: Tokens) -> Tokens:
    targets = np.full_like(inputs, IGNORE)
    data = inputs < vocab - 2
    targets[:, -tokens:] = inputs[data].reshape(len(inputs), tokens)
    return targets


@register_task("recall")
def recall(vocab: int = 16) -> Task:
    """Pairs of a key and a value; once a key has been seen in a sequence, its value is known when it comes again."""
    check_vocab("recall", vocab, 4)
    if vocab % 2:
        raise ValueError(
            f"The task 'recall' needs an even vocabulary, half keys and half values, got {vocab}."
        )
    return Task(
        "recall",
        vocab,
        vocab,
        partial(draw_recall, vocab, False),
        64,
        solve=partial(solve_recall, vocab),
        lengths="even ones from 4 on",
        fits=lambda length: length >= 4 and length % 2 == 0,
        train_draw=partial(draw_recall, vocab, True),
    )


def draw_recall(
    vocab: int, next_token: bool, count: int, length: int, rng: np.random.Generator
) -> Examples:
    """Pairs drawn with replacement, the last key one that came before; to train on, every next token is a target."""
    half, pairs = vocab // 2, length // 2
    values = half + rng.integers(0, half, (count, half))
    keys = rng.integers(0, half, (count, pairs))
    keys[:, -1] = keys[np.arange(count), rng.integers(0, pairs - 1, count)]
    sequence = np.stack([keys, np.take_along_axis(values, keys, 1)], 2).reshape(count, length)
    inputs = sequence[:, :-1]
    return Examples(inputs, sequence[:, 1:] if next_token else solve_recall(vocab, inputs))


def solve_recall(vocab: int, inputs: Tokens) -> Tokens:
    """The value at every key that came before in its sequence."""
    count, length = inputs.shape
    targets, known = np.full_like(inputs, IGNORE), np.full((count, vocab // 2), IGNORE)
    rows = np.arange(count)
    for t in range(0, length, 2):
        targets[:, t] = known[rows, inputs[:, t]]
        if t + 1 < length:
            known[rows, inputs[:, t]] = inputs[:, t + 1]
    return targets


def check_vocab(task: str, vocab: int, least: int) -> None:
    if vocab < least:
        raise ValueError(
            f"The option `vocab` of the task {task!r} must be at least {least}, got {vocab}."
        )
