"""The walk through the product of a model and the automaton of its task.

From (q0, state after BOS), breadth first over all letters, running the model's own step. A model
whose gates only copy has finitely many states unless it keeps loading new values, so the walk
closes, and then nothing that any word can do to the model is missing from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from statemix.models import Tagger
from statemix.proof.step import initial_states, step
from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["Walk", "pair_key", "walk"]

States = list[Float[Tensor, "S n m"]]
_ROWS = 4096  # pairs and letters that are stepped at once, about


@dataclass
class Walk:
    """Pairs of a task's state and the model's states, and the letter that first led to each."""

    q: list[int] = field(default_factory=list)
    states: list[States] = field(default_factory=list)
    parents: list[tuple[int, int]] = field(default_factory=list)
    closed: bool = True

    def word(self, pair: int) -> list[int]:
        """The shortest word that leads to a pair."""
        letters = []
        while self.parents[pair][0] >= 0:
            pair, letter = self.parents[pair]
            letters.append(letter)
        return letters[::-1]

    def transitions(self, automaton: Automaton) -> Iterator[tuple[Tensor, Tensor, States]]:
        """All pairs with all letters that a word may have there: pairs, letters, states."""
        allowed = torch.from_numpy((automaton.step != NO_STEP) | (automaton.answer >= 0))
        count = _ROWS // automaton.letters + 1
        for first in range(0, len(self.q), count):
            part = slice(first, first + count)
            pairs, letters = allowed[self.q[part]].nonzero(as_tuple=True)
            layers = zip(*self.states[part], strict=True)
            stacked = [torch.cat(layer)[pairs] for layer in layers]
            yield pairs + first, letters, stacked


@torch.no_grad()
def walk(model: Tagger, automaton: Automaton, limit: int) -> Walk:
    """Walk until no new pair is found, or until the first `limit` pairs are found."""
    found = Walk()
    known: dict[tuple[int, bytes], int] = {}
    silent = [torch.zeros_like(h[0]) for h in initial_states(model)]
    _note(found, known, automaton.start, _after_bos(model, silent), (-1, -1))
    start = 0
    while start < len(found.q) and found.closed:
        stop = min(len(found.q), start + _ROWS // automaton.letters + 1)
        _advance(model, automaton, found, known, range(start, stop), silent)
        start = stop
        found.closed = len(found.q) <= limit
    for each in (found.q, found.states, found.parents):
        del each[limit:]
    return found


def _advance(
    model: Tagger,
    automaton: Automaton,
    found: Walk,
    known: dict[tuple[int, bytes], int],
    pairs: range,
    silent: list[Tensor],
) -> None:
    """Step these pairs by every letter after which a word may continue."""
    sources, letters = _continuing(automaton, found.q[pairs.start : pairs.stop])
    if not len(sources):
        return
    layers = zip(*found.states[pairs.start : pairs.stop], strict=True)
    states = [torch.cat(layer)[sources] for layer in layers]
    after = step(model, letters, states, silent, 0.0).states
    for i, (source, letter) in enumerate(zip(sources.tolist(), letters.tolist(), strict=True)):
        q = int(automaton.step[found.q[pairs.start + source], letter])
        _note(found, known, q, [h[i : i + 1] for h in after], (pairs.start + source, letter))


def _continuing(automaton: Automaton, q: list[int]) -> tuple[Tensor, Tensor]:
    """The rows of `q`, and the letters after which their words may continue."""
    rows, letters = torch.from_numpy(automaton.step[q] != NO_STEP).nonzero(as_tuple=True)
    return rows, letters


def pair_key(q: int, states: States) -> tuple[int, bytes]:
    """Equal for pairs whose states have the same bits, where −0 counts as 0."""
    return q, b"".join((h + 0.0).numpy().tobytes() for h in states)


def _note(
    found: Walk,
    known: dict[tuple[int, bytes], int],
    q: int,
    states: States,
    parent: tuple[int, int],
) -> None:
    """Add a pair unless one with the same bits is known."""
    key = pair_key(q, states)
    if key not in known:
        known[key] = len(found.q)
        found.q.append(q)
        found.states.append([h.clone() for h in states])
        found.parents.append(parent)


def _after_bos(model: Tagger, silent: list[Tensor]) -> States:
    """The states before the first letter of a word."""
    states = initial_states(model)
    if not model.config.bos:
        return states
    bos = torch.tensor([model.embedding.num_embeddings - 1])
    return step(model, bos, states, silent, 0.0).states
