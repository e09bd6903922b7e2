"""Random words of an automaton, and whether a model answers all of them rightly."""

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from statemix.models import Tagger
from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["answers_all", "random_words", "right"]


def random_words(
    automaton: Automaton, count: int, length: int, seed: list[int]
) -> tuple[Int[Tensor, "count T"], Int[Tensor, "count T"]]:
    """Random words (count, length) and their answers; letters are uniform among those allowed.

    If there are letters after which no word continues, which ask for the answer, half of the words
    end with one as soon as they can after a random number of letters, and are then padded.
    """
    rng = np.random.default_rng(seed)
    goes = automaton.step != NO_STEP
    ends = ~goes & (automaton.answer >= 0)
    last = np.where(rng.random(count) < 0.5, rng.integers(0, length - 1, count), length - 2)
    words = np.zeros((count, length), dtype=np.int64)
    q = np.full(count, automaton.start)
    for t in range(length):
        asks = (t >= last)[:, None] & ends[q].any(1, keepdims=True)
        allowed = np.where(asks, ends[q], goes[q])
        words[:, t] = (rng.random(allowed.shape) * allowed).argmax(1)
        q = np.where(q == NO_STEP, NO_STEP, automaton.step[q, words[:, t]])
    return torch.from_numpy(words), torch.from_numpy(automaton.solve(words))


def right(model: Tagger, words: Tensor, answers: Tensor) -> float:
    """The share of right answers."""
    model.eval()
    with torch.no_grad():
        predicted = model(words)[0].argmax(-1)
    asked = answers >= 0
    return float((predicted == answers)[asked].double().mean())


def answers_all(model: Tagger, words: Tensor, answers: Tensor) -> bool:
    """True if every answer is right."""
    return right(model, words, answers) == 1.0
