"""The automaton that a trained model with hard gates is, read from its weights.

A model whose gates only copy has finitely many states unless it keeps loading new values. A walk
from the state after BOS finds all of them, and what the model answers after each letter:

    step[s, a] = the state after s and a,    answer[s, a] = argmax of the logits there

States that no answer tells apart are merged.
"""

import numpy as np
import torch
from torch import nn

from statemix.analysis.automata.minimal import minimise
from statemix.models import Tagger
from statemix.proof.certificate import check_fits, compact
from statemix.proof.step import check_provable, initial_states, step
from statemix.proof.walk import Walk, pair_key, walk
from statemix.tasks.automaton import NO_STEP, Automaton
from statemix.tasks.task import IGNORE

__all__ = ["extract"]


@torch.no_grad()
def extract(model: nn.Module, words: Automaton | None = None, *, limit: int = 20_000) -> Automaton:
    """The minimised automaton of a model, in the blocks that its readout sees.

    Args:
        words: read the letters that this automaton allows, and keep the answers that it asks for
            (None: any word, and all answers). The result equals `minimise(words)` if and only if
            the model answers all of them as it does.
        limit: raise an error if the model has more states than this.
    """
    check_provable(model)
    assert isinstance(model, Tagger)
    words = _any_word(model) if words is None else words
    check_fits(model, words)
    small = compact(model)
    found = walk(small, words, limit)
    if not found.closed:
        raise ValueError(
            f"The model has more than {limit:,} states, or not finitely many. "
            "Remove blocks first, as `statemix.proof.prove` does, or raise `limit`."
        )
    return minimise(_table(small, words, found))


def _any_word(model: Tagger) -> Automaton:
    """One state, in which every letter can be read and asks for an answer."""
    letters = model.embedding.num_embeddings - model.config.bos
    table = np.zeros((1, letters), dtype=np.int64)
    return Automaton(table, table)


def _table(model: Tagger, words: Automaton, found: Walk) -> Automaton:
    """The next pairs and the answers of all pairs of a walk that closed."""
    number = {
        pair_key(q, states): i
        for i, (q, states) in enumerate(zip(found.q, found.states, strict=True))
    }
    after = np.full((len(found.q), words.letters), NO_STEP)
    answers = np.full_like(after, IGNORE)
    silent = [torch.zeros_like(h[0]) for h in initial_states(model)]
    for pairs, letters, states in found.transitions(words):
        stepped = step(model, letters, states, silent, 0.0)
        predicted = stepped.logits.value.argmax(1).tolist()
        for row, (pair, letter) in enumerate(zip(pairs.tolist(), letters.tolist(), strict=True)):
            q = found.q[pair]
            if words.answer[q, letter] != IGNORE:
                answers[pair, letter] = predicted[row]
            q_next = int(words.step[q, letter])
            if q_next != NO_STEP:
                h = [layer[row : row + 1] for layer in stepped.states]
                after[pair, letter] = number[pair_key(q_next, h)]
    return Automaton(after, answers)
