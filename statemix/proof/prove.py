"""From a trained model to a proof: remove blocks, certify, and train the readout if needed.

1. keep the blocks that carry a function of the task's state, with gates that are clear
2. certify; if that fails, train the readout on all that it can ever see, and certify again
3. if these blocks do not tell all states apart, keep up to three more, those with the fewest states
4. if that fails too, look for a word on which the model is wrong as it was trained
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Literal, cast

import numpy as np
import torch
from jaxtyping import Bool
from numpy.typing import NDArray
from torch import Tensor, nn

from statemix.models import Tagger
from statemix.proof.blocks import consistent_blocks, live_blocks, mixers_of
from statemix.proof.certificate import (
    UNITS,
    Certificate,
    certify,
    check_fits,
    compact,
    with_mixers,
)
from statemix.proof.refit import refit
from statemix.proof.step import check_provable
from statemix.proof.walk import walk
from statemix.tasks.automaton import Automaton

__all__ = ["Proof", "check_one_layer", "prove"]

_MORE = 3  # blocks to add if those that carry a function of q are not enough
_PAIRS = 4_000  # to visit in search of states that no readout tells apart
_TRANSITIONS = 30_000  # to visit, about, in search of an error of the trained model
_UNIT = UNITS["float32"]


@dataclass(frozen=True)
class Proof:
    """A model and what was proved about it.

    `way` says which model it is: `pruned` is the trained one without blocks that carry no function
    of the task's state, `refitted` has a readout that was trained further, and `trained` is as it
    was trained. `total` is the number of blocks of the trained model.
    """

    model: Tagger
    certificate: Certificate
    way: Literal["pruned", "refitted", "trained"]
    total: int


def prove(
    model: nn.Module,
    automaton: Automaton,
    *,
    steps: int = 200,
    observe: Callable[[int], None] | None = None,
) -> Proof:
    """Prove a one-layer model right on every word, without the blocks that only add noise.

    Args:
        steps: steps of training the readout, if it is needed.
        observe: is called after each of these steps with its number.
    """
    tagger = check_one_layer(model)
    check_fits(tagger, automaton)
    failed = []
    for proof in _attempts(tagger, automaton, steps, observe):
        if proof.certificate.holds:
            return proof
        failed.append(proof)
    as_trained = failed.pop()
    return failed[-1] if as_trained.certificate.counterexample is None else as_trained


def _attempts(
    model: Tagger, automaton: Automaton, steps: int, observe: Callable[[int], None] | None
) -> Iterator[Proof]:
    """The proofs to try, in this order; the last is about the model as it was trained."""
    total = mixers_of(model)[0].state_shape[0]
    kept = consistent_blocks(model, automaton)
    for block in kept.nonzero().squeeze(1).tolist():
        kept[block] = _is_clear(model, automaton, block)
    pruned = compact(with_mixers(model, [kept]))
    yield Proof(pruned, _try(pruned, automaton), "pruned", total)
    for more in _widening(model, automaton, kept):
        wider = with_mixers(model, [more])
        if _tells_apart(wider, automaton):
            refitted = compact(refit(wider, automaton, steps=steps, observe=observe))
            yield Proof(refitted, _try(refitted, automaton), "refitted", total)
    whole = compact(model)
    found = _try(whole, automaton, _TRANSITIONS // automaton.letters)
    yield Proof(whole, found, "trained", total)


def check_one_layer(model: nn.Module) -> Tagger:
    """The model, or an error unless it is a tagger of one BD-LRU whose gates are hard."""
    check_provable(model)
    tagger = cast(Tagger, model)
    if len(tagger.blocks) != 1:
        raise ValueError(
            f"Only models of one layer can be pruned and proved, got {len(tagger.blocks)} layers. "
            "Train with --layers 1."
        )
    return tagger


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
    alone = _try(with_mixers(model, [torch.tensor([block])]), automaton, limit)
    return alone.pairs <= limit and alone.gate_slack > 0


def _try(model: Tagger, automaton: Automaton, limit: int = 200_000) -> Certificate:
    """The certificate of `model`, or a failed one if rounding errors cannot be bounded."""
    try:
        return certify(model, automaton, limit=limit)
    except FloatingPointError as error:
        blocks = tuple(int(live_blocks(mixer).sum()) for mixer in mixers_of(model))
        lost = -float("inf")
        return Certificate(False, str(error), 0, blocks, lost, lost, lost, "float32")
