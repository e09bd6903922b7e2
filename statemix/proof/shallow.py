"""Models of one layer that might be provable, made from a trained one.

1. keep the blocks that carry a function of the task's state, with gates that are clear
2. move near ties of gates apart, so that more blocks are clear
3. train the readout on all that it can ever see
4. if these blocks do not tell all states apart, keep up to three more, those with the fewest states
"""

import copy
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor

from statemix.layers import BDLRU
from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.blocks import consistent_blocks
from statemix.proof.certificate import certify_if_bounded, with_mixers
from statemix.proof.gates import LEAD, move_apart
from statemix.proof.refit import refit
from statemix.proof.walk import walk
from statemix.tasks.automaton import Automaton

__all__ = ["shallow_candidates"]

ShallowWay = Literal["pruned", "separated", "refitted"]
_MORE = 3  # blocks to add if those that carry a function of q are not enough
_PAIRS = 4_000  # to visit in search of states that no readout tells apart


def shallow_candidates(
    model: Tagger, automaton: Automaton, steps: int, observe: Callable[[str], None]
) -> Iterator[tuple[Tagger, ShallowWay]]:
    """Candidates, in the order in which to try them, and what was done to each."""
    clear = _clear_blocks(model, automaton)
    yield with_mixers(model, [clear]), "pruned"
    apart = _with_gates_apart(model)
    kept = _clear_blocks(apart, automaton)
    if (kept != clear).any():
        yield with_mixers(apart, [kept]), "separated"
    for more in _widening(apart, automaton, kept):
        wider = with_mixers(apart, [more])
        if _tells_apart(wider, automaton):
            yield refit(wider, automaton, steps=steps, observe=observe), "refitted"


def _clear_blocks(model: Tagger, automaton: Automaton) -> Bool[Tensor, " n"]:
    """The blocks that carry a function of the task's state and have clear gates."""
    kept = consistent_blocks(model, automaton)
    for block in kept.nonzero().squeeze(1).tolist():
        kept[block] = _is_clear(model, automaton, block)
    return kept


def _with_gates_apart(model: Tagger) -> Tagger:
    """A copy in which no letter finds two gates of a row close together."""
    apart = copy.deepcopy(model)
    for block in apart.blocks:
        own = cast(Block, block)
        norm = copy.deepcopy(own.mixer_norm).double()
        inputs = norm(model.embedding.weight.double()).detach()
        move_apart(cast(BDLRU, own.mixer), inputs, LEAD)
    return apart


def _widening(
    model: Tagger, automaton: Automaton, kept: Bool[Tensor, " n"]
) -> Iterator[Bool[Tensor, " n"]]:
    """The kept blocks, then one to three more: those whose own walks meet the fewest pairs."""
    yield kept
    sizes = {}
    for i in (~kept).nonzero().squeeze(1).tolist():
        with torch.no_grad():
            alone = walk(with_mixers(model, [torch.tensor([i])]), automaton, 10 * automaton.states)
        if alone.closed:
            sizes[i] = len(alone.q)
    more = kept.clone()
    smallest = sorted(sizes, key=lambda block: sizes[block])
    clear = (block for block in smallest if _is_clear(model, automaton, block))
    for block in islice(clear, _MORE):
        more[block] = True
        yield more.clone()


@torch.no_grad()
def _tells_apart(model: Tagger, automaton: Automaton) -> bool:
    """True if some readout of these blocks is right: where states agree, answers do."""
    found = walk(model, automaton, _PAIRS)
    answers: dict[bytes, NDArray[np.int64]] = {}
    for q, (h,) in zip(found.q, found.states, strict=True):
        asked = automaton.answer[q]
        known = answers.setdefault((h + 0.0).numpy().tobytes(), asked)
        if ((known != asked) & (known >= 0) & (asked >= 0)).any():
            return False
        answers[(h + 0.0).numpy().tobytes()] = np.maximum(known, asked)
    return True


def _is_clear(model: Tagger, automaton: Automaton, block: int) -> bool:
    """True if a block has few states, and gates that differ by more than rounding errors."""
    limit = 10 * automaton.states
    alone = certify_if_bounded(with_mixers(model, [torch.tensor([block])]), automaton, limit)
    return alone.pairs <= limit and alone.gate_slack > 0
