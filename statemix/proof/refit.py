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

_CHECK = 20  # steps between two looks at the margin
_CLEAR = 4.0  # a margin that needs no further training
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
    observe: Callable[[str], None] = lambda _: None,
) -> Tagger:
    """A copy of a pruned model whose readout is trained on every pair of a state and a letter.

    Args:
        observe: receives a few words after each step.
    """
    refitted = with_mixers(model, [torch.ones(mixers_of(model)[0].state_shape[0]).bool()])
    embedded, h, answers = _everything_asked(refitted, automaton)
    W_o = mixers_of(refitted)[0].W_o
    readout = [*W_o.parameters(), *refitted.norm.parameters(), *refitted.head.parameters()]
    optimiser = torch.optim.AdamW(readout, lr=lr, weight_decay=0.0)
    for number in range(steps):
        logits = refitted.head(refitted.norm(embedded + W_o(h)))
        if number % _CHECK == 0 and _smallest_margin(logits, answers) > _CLEAR:
            break
        optimiser.zero_grad(set_to_none=True)
        F.cross_entropy(logits, answers).backward()
        optimiser.step()
        observe(f"training the readout, step {number + 1} of {steps}")
    return refitted.eval()


@torch.no_grad()
def _smallest_margin(logits: Float[Tensor, "S classes"], answers: Int[Tensor, " S"]) -> float:
    """The smallest distance between a right logit and the next one."""
    own = answers.unsqueeze(1)
    others = logits.scatter(1, own, -torch.inf).amax(1)
    return float((logits.gather(1, own).squeeze(1) - others).min())


@torch.no_grad()
def _everything_asked(
    model: Tagger, automaton: Automaton
) -> tuple[Float[Tensor, "S d"], Float[Tensor, "S nm"], Int[Tensor, " S"]]:
    """Embedded letters, the states after them, and the answers, for all transitions asked for."""
    found = walk(model, automaton, _LIMIT)
    parts = []
    for pairs, letters, states in found.transitions(automaton):
        q = [found.q[pair] for pair in pairs.tolist()]
        answers = torch.from_numpy(automaton.answer[q, letters.numpy()])
        asked = answers >= 0
        parts.append((letters[asked], states[0][asked].float(), answers[asked]))
    letters, before, answers = (torch.cat(each) for each in zip(*parts, strict=True))
    _, (h,) = model.advance(letters, [before])
    return model.embedding(letters), h.flatten(1), answers
