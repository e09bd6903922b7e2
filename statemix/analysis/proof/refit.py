"""Training the readout of a one-layer model on all that it can ever see.

The states of the kept blocks are functions of the task's state q, so the readout has finitely many
inputs, one for each pair (q, letter). A few hundred steps on all of them make its margins large.
"""

from collections.abc import Callable
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from statemix.analysis.proof.blocks import consistent_blocks, mixers_of, states_of
from statemix.analysis.proof.certificate import with_mixers
from statemix.models import Tagger
from statemix.tasks.automaton import Automaton

__all__ = ["prune", "refit"]


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
    q, letters = (automaton.answer >= 0).nonzero()
    answers = torch.from_numpy(automaton.answer[q, letters])
    with torch.no_grad():
        h = states_of(model, automaton)[q].float()
    tokens = torch.from_numpy(letters)
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
