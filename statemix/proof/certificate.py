"""Certificates: a model with hard gates is right on every word of every length, or it is not.

If the walk closes, and at every pair and letter the right class has the largest logit and the
chosen entry of every row a larger raw gate than all entries that hold another value, both by more
than the rounding error, then by induction over the length of the word the model is right on all
words. What is assumed is that sums and products are rounded to the nearest number, in any order of
summation.
"""

import copy
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from statemix.layers import BDLRU
from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.blocks import keep_blocks, live_blocks, mixers_of
from statemix.proof.rounding import Bounded
from statemix.proof.step import Stepped, check_provable, initial_states, step
from statemix.proof.walk import Walk, walk
from statemix.tasks.automaton import Automaton

__all__ = [
    "UNITS",
    "Certificate",
    "certify",
    "certify_if_bounded",
    "check_fits",
    "compact",
    "with_mixers",
]

UNITS = {"float32": 2.0**-24, "float64": 2.0**-53}


@dataclass(frozen=True)
class Certificate:
    """What was proved about a model.

    Args:
        holds: the model is right on every word of every length.
        reason: one sentence: why it holds, or why not.
        pairs: pairs of a task's state and a model's state that some word reaches.
        blocks: the number of blocks that the readout sees, for each layer.
        margin: smallest distance between the logit of the right class and the next one.
        slack: what is left of the margins of logits after both rounding errors.
        gate_slack: what is left of the margins of gates after both rounding errors.
        dtype: the floating-point numbers for which it holds; also for all wider ones.
        counterexample: the shortest word on which the model is wrong, if one was found.
    """

    holds: bool
    reason: str
    pairs: int
    blocks: tuple[int, ...]
    margin: float
    slack: float
    gate_slack: float
    dtype: str
    counterexample: tuple[int, ...] | None = None


def compact(model: Tagger) -> Tagger:
    """The same function without the blocks that the readout does not see."""
    return with_mixers(model, [live_blocks(mixer) for mixer in mixers_of(model)])


def with_mixers(model: Tagger, kept: list[Tensor]) -> Tagger:
    """A copy of `model` with these blocks of each layer."""
    smaller = copy.deepcopy(model)
    for block, own in zip(smaller.blocks, kept, strict=True):
        cast(Block, block).mixer = keep_blocks(cast(BDLRU, cast(Block, block).mixer), own)
    return smaller.eval()


def _vocab(model: Tagger) -> int:
    return model.embedding.num_embeddings - model.config.bos


@torch.no_grad()
def certify(
    model: nn.Module, automaton: Automaton, *, dtype: str = "float32", limit: int = 200_000
) -> Certificate:
    """Prove that `model` answers as `automaton` does on every word, or find one where it does not.

    Args:
        dtype: the floating-point numbers that the model computes with.
        limit: give up after this many pairs.
    """
    check_provable(model)
    check_fits(cast(Tagger, model), automaton)
    small = compact(cast(Tagger, model))
    found = walk(small, automaton, limit)
    blocks = tuple(int(live_blocks(mixer).sum()) for mixer in mixers_of(small))
    margins = _margins(small, automaton, found, UNITS[dtype])
    reason, holds = _judge(found, margins, limit, dtype)
    wrong = margins.wrong
    return Certificate(
        holds=holds,
        reason=reason,
        pairs=len(found.q),
        blocks=blocks,
        margin=margins.logits,
        slack=margins.slack,
        gate_slack=margins.gates,
        dtype=dtype,
        counterexample=None if wrong is None else (*found.word(wrong[0]), wrong[1]),
    )


def certify_if_bounded(model: Tagger, automaton: Automaton, limit: int = 200_000) -> Certificate:
    """The certificate of `model`, or a failed one if rounding errors cannot be bounded."""
    try:
        return certify(model, automaton, limit=limit)
    except FloatingPointError as error:
        blocks = tuple(int(live_blocks(mixer).sum()) for mixer in mixers_of(model))
        lost = -float("inf")
        return Certificate(False, str(error), 0, blocks, lost, lost, lost, "float32")


def check_fits(model: Tagger, automaton: Automaton) -> None:
    """Raise an error unless the model reads the automaton's letters and has its answers."""
    if _vocab(model) != automaton.letters:
        raise ValueError(
            f"The model reads {_vocab(model)} tokens, but the automaton has {automaton.letters} "
            "letters. Certify it with the automaton of the task that it was trained on."
        )
    if automaton.answer.max() >= model.head.out_features:
        raise ValueError(
            f"The model has {model.head.out_features} classes, but the automaton answers up to "
            f"{automaton.answer.max()}. "
            "Certify it with the automaton of the task that it was trained on."
        )


@dataclass
class _Margins:
    """The smallest margins over all transitions, and the first pair and letter that go wrong."""

    logits: float = float("inf")
    slack: float = float("inf")
    gates: float = float("inf")
    wrong: tuple[int, int] | None = None


def _margins(model: Tagger, automaton: Automaton, found: Walk, unit: float) -> _Margins:
    """The smallest margins, with the largest error that any state of the walk may have."""
    errors = [torch.zeros_like(h[0]) for h in initial_states(model)]
    while True:
        result, loaded = _scan(model, automaton, found, errors, unit)
        if all(bool((new <= old).all()) for new, old in zip(loaded, errors, strict=True)):
            return result
        errors = [torch.maximum(a, b) for a, b in zip(loaded, errors, strict=True)]


def _scan(
    model: Tagger,
    automaton: Automaton,
    found: Walk,
    errors: list[Float[Tensor, "n m"]],
    unit: float,
) -> tuple[_Margins, list[Float[Tensor, "n m"]]]:
    """One pass over all transitions: margins, and the largest errors of loaded values."""
    result = _Margins()
    loaded = errors
    if model.config.bos:
        first = _step_bos(model, errors, unit)
        result.gates = first.gate_margin.min().item()
        loaded = [x[0] for x in first.loaded]
    for pairs, letters, states in found.transitions(automaton):
        stepped = step(model, letters, states, errors, unit)
        loaded = [torch.maximum(a, b.amax(0)) for a, b in zip(loaded, stepped.loaded, strict=True)]
        asked = automaton.answer[[found.q[pair] for pair in pairs.tolist()], letters.numpy()]
        _compare(result, pairs, letters, torch.from_numpy(asked), stepped)
    return result, loaded


def _step_bos(model: Tagger, errors: list[Tensor], unit: float) -> Stepped:
    """The step that reads BOS."""
    bos = torch.tensor([model.embedding.num_embeddings - 1])
    return step(model, bos, initial_states(model), errors, unit)


def _compare(
    result: _Margins, pairs: Tensor, letters: Tensor, asked: Tensor, stepped: Stepped
) -> None:
    """Update the margins by some transitions."""
    result.gates = min(result.gates, stepped.gate_margin.min().item())
    scored = asked >= 0
    if not scored.any():
        return
    right = asked[scored].unsqueeze(1)
    margin, slack = _logit_margins(Bounded(*(x[scored] for x in stepped.logits)), right)
    result.logits = min(result.logits, margin.min().item())
    result.slack = min(result.slack, slack.min().item())
    if result.wrong is None and bool((margin <= 0).any()):
        first = int((margin <= 0).nonzero()[0])
        result.wrong = int(pairs[scored][first]), int(letters[scored][first])


def _logit_margins(
    logits: Bounded, right: Tensor
) -> tuple[Float[Tensor, " S"], Float[Tensor, " S"]]:
    """The distance of the right logit to the next one, and what is left of it after errors."""
    value, error = logits
    others = torch.zeros_like(value, dtype=torch.bool).scatter(1, right, True)
    next_value = value.masked_fill(others, -torch.inf).amax(1)
    next_bound = (value + error).masked_fill(others, -torch.inf).amax(1)
    own = value.gather(1, right).squeeze(1)
    lower = (value - error).gather(1, right).squeeze(1)
    return own - next_value, lower - next_bound


def _judge(found: Walk, margins: _Margins, limit: int, dtype: str) -> tuple[str, bool]:
    """One sentence about the result, and whether the model is proved right."""
    if margins.wrong is not None:
        return "The model answers a word wrongly.", False
    if not found.closed:
        return f"The walk met more than {limit:,} pairs without an error, but did not close.", False
    if margins.gates <= 0:
        return f"Two gates of a row are closer than the rounding error of {dtype}.", False
    if margins.slack <= 0:
        return f"Two logits are closer than the rounding error of {dtype}.", False
    return f"Right on every word of every length, in {dtype} or wider numbers.", True
