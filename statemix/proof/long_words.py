"""Brute force beside a proof: long random words, run through the model as it is.

Parts of the words follow each other, and the state of the model after one is where the next begins,
so memory does not grow with the length. The answers are those of the automaton.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from statemix.models import Tagger
from statemix.models.tagger import States
from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["LongWords", "run_long_words"]

_PART = 32  # tokens of each word that are run at once


@dataclass(frozen=True)
class LongWords:
    """Random words that a model has read.

    Args:
        answers: the number of answers that the task asks for in all words.
        wrong: how many of the model's answers are wrong.
    """

    sequences: int
    length: int
    answers: int
    wrong: int


@torch.no_grad()
def run_long_words(
    model: Tagger,
    automaton: Automaton,
    *,
    sequences: int = 256,
    length: int = 65_536,
    seed: int = 0,
) -> LongWords:
    """Run random words of `length` letters, and count the wrong answers.

    Letters are uniform among those after which a word continues. If the task asks at the end of a
    word, the last letter is the one that asks.
    """
    model.eval()
    walker = _Walker(automaton, sequences, seed)
    states: States | None = None
    asked = wrong = 0
    for first in range(0, length, _PART):
        count = min(_PART, length - first)
        words, answers = walker.read(count, ends=first + count == length)
        logits, states = model(torch.from_numpy(words), states)
        scored = answers >= 0
        asked += int(scored.sum())
        wrong += int((logits.argmax(-1).numpy() != answers)[scored].sum())
    return LongWords(sequences, length, asked, wrong)


class _Walker:
    """Random words, letter by letter, and the states of the automaton that reads them."""

    def __init__(self, automaton: Automaton, sequences: int, seed: int) -> None:
        self.automaton = automaton
        self.rng = np.random.default_rng([seed, 5])
        self.q = np.full(sequences, automaton.start)
        continues = automaton.step != NO_STEP
        self.going = _choices(continues)
        # Where no letter asks and ends the word, it ends with any letter.
        asks = ~continues & (automaton.answer >= 0)
        self.ending = _choices(np.where(asks.any(1, keepdims=True), asks, continues))

    def read(self, length: int, *, ends: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The next letters (sequences, length) of all words, and their answers."""
        words = np.empty((len(self.q), length), dtype=np.int64)
        answers = np.empty_like(words)
        chances = self.rng.random((length, len(self.q)))
        for t in range(length):
            counts, letters = self.ending if ends and t == length - 1 else self.going
            word = letters[self.q, (chances[t] * counts[self.q]).astype(np.int64)]
            words[:, t] = word
            answers[:, t] = self.automaton.answer[self.q, word]
            self.q = self.automaton.step[self.q, word]
        return words, answers


def _choices(allowed: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many letters each state allows, and these letters, first in its row."""
    return allowed.sum(1), np.argsort(~allowed, axis=1, kind="stable")
