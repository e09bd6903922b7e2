"""Training a small model on the words that it gets wrong, which a walk finds.

A walk visits all pairs of a state of the task and a state of the model, so it finds every kind of
word that the model gets wrong, also those that random words almost never are. Some hundred steps on
random words and on these repair it; then the next walk looks for mistakes that are left.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from statemix.models import Tagger
from statemix.proof.walk import walk
from statemix.proof.words import random_words
from statemix.tasks.automaton import Automaton
from statemix.tasks.task import IGNORE

__all__ = ["train_on_mistakes"]

ROUNDS = 10
_STEPS = 200  # in a round
_BATCH = 64  # random words in a step
_LENGTH = 65
_MISTAKES = 128  # words in a step that were wrong in a walk
_KEPT = 1000  # new words to keep of a round
_MARGIN = 0.5  # a right answer with a smaller margin counts as wrong
_PAIRS = 120_000
_SLOWEST = 0.02  # of the rate, at the end of a round

Batch = tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]


def train_on_mistakes(
    model: Tagger,
    automaton: Automaton,
    *,
    lr: float = 3e-3,
    observe: Callable[[str], None] = lambda _: None,
) -> bool:
    """Train in place until a walk closes and finds no mistake; False if that does not happen."""
    mistakes: list[list[int]] = []
    for number in range(ROUNDS):
        _train(model, automaton, mistakes, number, lr)
        wrong, closed, pairs = _find_mistakes(model, automaton, number)
        observe(f"round {number + 1}: {pairs:,} pairs, {len(wrong):,} mistakes")
        if closed and not wrong:
            return True
        mistakes += wrong
    return False


def _train(
    model: Tagger, automaton: Automaton, mistakes: list[list[int]], number: int, lr: float
) -> None:
    """One round of training; the rate decays linearly."""
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    for step in range(_STEPS):
        for group in optimiser.param_groups:
            group["lr"] = lr * max(_SLOWEST, 1 - step / _STEPS)
        batches = [random_words(automaton, _BATCH, _LENGTH, [2, number, step])]
        if mistakes:
            batches.append(_draw(mistakes, automaton, [3, number, step]))
        loss = torch.stack([_loss(model, *batch) for batch in batches]).sum()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    model.eval()


def _loss(model: Tagger, inputs: Tensor, targets: Tensor) -> Tensor:
    logits = model(inputs)[0]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)


def _draw(mistakes: list[list[int]], automaton: Automaton, seed: list[int]) -> Batch:
    """A batch of these words, padded with letters that nothing asks for."""
    rng = np.random.default_rng(seed)
    chosen = [mistakes[i] for i in rng.integers(0, len(mistakes), _MISTAKES)]
    lengths = np.array([len(word) for word in chosen])
    words = np.zeros((len(chosen), lengths.max()), dtype=np.int64)
    for row, word in enumerate(chosen):
        words[row, : len(word)] = word
    targets = automaton.solve(words)
    targets[np.arange(words.shape[1]) >= lengths[:, None]] = IGNORE
    return torch.from_numpy(words), torch.from_numpy(targets)


@torch.no_grad()
def _find_mistakes(
    model: Tagger, automaton: Automaton, number: int
) -> tuple[list[list[int]], bool, int]:
    """Words that a model gets wrong or nearly so, whether the walk closed, and its pairs."""
    found = walk(model, automaton, _PAIRS)
    wrong = []
    for pairs, letters, states in found.transitions(automaton):
        q = [found.q[pair] for pair in pairs.tolist()]
        answers = torch.from_numpy(automaton.answer[q, letters.numpy()])
        asked = answers >= 0
        if not asked.any():
            continue
        logits, _ = model.step(letters[asked], [h[asked].float() for h in states])
        own = answers[asked].unsqueeze(1)
        margin = logits.gather(1, own) - logits.scatter(1, own, -torch.inf).amax(1, keepdim=True)
        low = margin.squeeze(1) < _MARGIN
        wrong += list(zip(pairs[asked][low].tolist(), letters[asked][low].tolist(), strict=True))
    rng = np.random.default_rng([4, number])
    kept = rng.permutation(len(wrong))[:_KEPT]
    words = [[*found.word(wrong[i][0]), wrong[i][1]] for i in kept.tolist()]
    return words, found.closed, len(found.q)
