"""What a certified model of modular arithmetic has found, read off its weights.

The first layer multiplies: after `·`, a digit permutes some slots of a block as multiplication by
it permutes the digits 1 to 4. The second layer adds, with permutations of all slots.
"""

from pathlib import Path

import statemix
from statemix.proof import live_blocks, load_certificate
from statemix.proof.blocks import mixers_of
from statemix.proof.moves import Moves, moves_above, sources
from statemix.proof.saved import CERTIFICATE, SavedCertificate
from statemix.tasks import find_task

__all__ = ["additions", "load_example", "multiplications"]

_TIMES = "·"
_FACTORS = range(1, 5)  # the digits that have an inverse modulo 5


def load_example(name: str) -> SavedCertificate:
    """A certified model of the repository's examples/models, which wheels contain too."""
    package = Path(statemix.__file__).parent
    places = [parent / "examples" / "models" for parent in (package, package.parent)]
    found = [place / name / CERTIFICATE for place in places if (place / name).is_dir()]
    if not found:
        raise FileNotFoundError(
            f"There is no example {name!r} in {places[0]} or {places[1]}. Install statemix again."
        )
    return load_certificate(found[0])


def multiplications(example: SavedCertificate) -> dict[int, Moves]:
    """How `·` and then a digit permute the slots of a block in the first layer, for each digit.

    Slots that some digit overwrites are left out, and the others are numbered from 0.
    """
    names = find_task(example.task, example.task_options).letters
    moves = sources(example.model)[:, live_blocks(mixers_of(example.model)[0])]
    best: dict[int, Moves] = {}
    for block in range(moves.shape[1]):
        times = [*moves[names.index(_TIMES), block].tolist(), moves.shape[2]]
        pairs = {d: tuple(times[j] for j in moves[d, block].tolist()) for d in _FACTORS}
        kept = _permuted(list(pairs.values()))
        if len(kept) > len(best.get(1, ())):
            best = {d: tuple(kept.index(pairs[d][i]) for i in kept) for d in _FACTORS}
    return best


def _permuted(moves: list[Moves]) -> list[int]:
    """The largest set of slots that every move permutes."""
    kept = set(range(len(moves[0])))
    while True:
        inside = {i for i in kept if all(move[i] in kept for move in moves)}
        smaller = inside.intersection(*({move[i] for i in inside} for move in moves))
        if smaller == kept:
            return sorted(kept)
        kept = smaller


def additions(example: SavedCertificate) -> list[Moves]:
    """The permutations in the second layer that move something, the commonest first."""
    task = find_task(example.task, example.task_options)
    assert task.automaton is not None
    (found,) = moves_above(example.model, task.automaton).values()
    still = tuple(range(len(next(iter(found)))))
    commonest = sorted(found, key=lambda own: -sum(found[own].values()))
    return [own for own in commonest if sorted(own) == list(still) and own != still]
