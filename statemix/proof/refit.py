"""Training the readout of a one-layer model on all that it can ever see.

A walk finds all pairs of the task's state q and the states of the kept blocks, so the readout has
finitely many inputs, one for each pair and letter. A few hundred steps on all of them make its
margins large.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.models import Tagger
from statemix.proof.blocks import consistent_blocks, mixers_of
from statemix.proof.certificate import with_mixers
from statemix.proof.walk import walk
from statemix.tasks.automaton import Automaton

__all__ = ["prune", "refit"]

_LIMIT = 4_000  # pairs whose transitions the readout is trained on


def prune(model: nn.Module, automaton: Automaton) -> Tagger:
    """A copy of a one-layer model with the blocks that carry functions of the task's state."""
    tagger = cast(Tagger, model)
    return with_mixers(tagger, [consistent_blocks(tagger, automaton)])


def refit(
    model: Tagger,
    automaton: Automaton,
    *,
    steps: int = 200,
    lr: float = 1e-2,
    observe: Callable[[int], None] | None = None,
) -> Tagger:
    """A copy of a pruned model whose readout is trained on every pair of a state and a letter.

    Args:
        observe: is called after each step with its number.
    """
    refitted = with_mixers(model, [torch.ones(mixers_of(model)[0].state_shape[0]).bool()])
    tokens, h, answers = _everything_asked(refitted, automaton)
    readout = [*mixers_of(refitted)[0].W_o.parameters(), *refitted.norm.parameters()]
    optimiser = torch.optim.AdamW([*readout, *refitted.head.parameters()], lr=lr, weight_decay=0.0)
    for number in range(steps):
        x, _ = refitted.advance(tokens, [h])
        loss = F.cross_entropy(refitted.head(refitted.norm(x)), answers)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        if observe is not None:
            observe(number + 1)
    return refitted.eval()


@torch.no_grad()
def _everything_asked(
    model: Tagger, automaton: Automaton
) -> tuple[Int[Tensor, " S"], Float[Tensor, "S n m"], Int[Tensor, " S"]]:
    """Letters, the states before them, and the answers, for all transitions that are asked."""
    found = walk(model, automaton, _LIMIT)
    parts = []
    for pairs, letters, states in found.transitions(automaton):
        q = [found.q[pair] for pair in pairs.tolist()]
        answers = torch.from_numpy(automaton.answer[q, letters.numpy()])
        asked = answers >= 0
        parts.append((letters[asked], states[0][asked].float(), answers[asked]))
    letters, h, answers = (torch.cat(each) for each in zip(*parts, strict=True))
    return letters, h, answers
