"""From a trained model to a proof: make it small, and certify what is left.

The candidates come from `shallow` for one layer, and from `deep` for several. If none is proved,
the model as it was trained is searched for a word that it gets wrong.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

from torch import nn

from statemix.models import Tagger
from statemix.proof.blocks import mixers_of
from statemix.proof.certificate import Certificate, certify_if_bounded, check_fits, compact
from statemix.proof.deep import deep_candidates
from statemix.proof.shallow import shallow_candidates
from statemix.proof.step import check_provable
from statemix.tasks.automaton import Automaton

__all__ = ["Proof", "Way", "prove"]

Way = Literal["pruned", "separated", "refitted", "retrained", "trained"]
_TRANSITIONS = 30_000  # to visit, about, in search of an error of the trained model


@dataclass(frozen=True)
class Proof:
    """A model and what was proved about it.

    `total` is the number of blocks of the trained model in each layer, and `way` says which model
    was proved:

        pruned       the trained one without blocks that carry no function of the task's state
        separated    the same, and near ties of its gates were moved apart
        refitted     the same, and its readout was trained further
        retrained    a smaller one, trained further; only its lowest layer loads values after BOS
        trained      the trained one
    """

    model: Tagger
    certificate: Certificate
    way: Way
    total: tuple[int, ...]


def prove(
    model: nn.Module,
    automaton: Automaton,
    *,
    steps: int = 200,
    observe: Callable[[str], None] = lambda _: None,
) -> Proof:
    """Prove a model right on every word, without the blocks that only add noise.

    Args:
        steps: steps of training the readout of a one-layer model, if it is needed.
        observe: receives a few words about what is being done.
    """
    check_provable(model)
    tagger = cast(Tagger, model)
    check_fits(tagger, automaton)
    total = tuple(mixer.state_shape[0] for mixer in mixers_of(tagger))
    failed = []
    for candidate, way in _candidates(tagger, automaton, steps, observe):
        small = compact(candidate)
        limit = _TRANSITIONS // automaton.letters if way == "trained" else 200_000
        proof = Proof(small, certify_if_bounded(small, automaton, limit), way, total)
        if proof.certificate.holds:
            return proof
        failed.append(proof)
    as_trained = failed.pop()
    wrong = as_trained.certificate.counterexample is not None
    return as_trained if wrong or not failed else failed[-1]


def _candidates(
    model: Tagger, automaton: Automaton, steps: int, observe: Callable[[str], None]
) -> Iterator[tuple[Tagger, Way]]:
    """Candidates, in the order in which to try them; the last is the model as it was trained."""
    if len(model.blocks) == 1:
        yield from shallow_candidates(model, automaton, steps, observe)
    else:
        yield from deep_candidates(model, automaton, observe)
    yield model, "trained"
