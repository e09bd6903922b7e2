"""Time and memory per token at several positions: for a recurrence, they do not depend on them.

Each model generates tokens up to the last position, storing its states at each position and the
peak of the process's resident memory up to there. Then the tokens from each position on are timed
in turns, so that other load on the machine affects all of them alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from statemix.bench.config import DecodeConfig
from statemix.bench.measure import Contest, Row, hold
from statemix.bench.memory import forget_peak, peak_mib
from statemix.models import LanguageModel, find_preset
from statemix.models.lm import States

__all__ = ["measure"]


@dataclass(frozen=True)
class _Place:
    """A position in a text: the next token, the states, and the peak memory so far in MiB."""

    token: Tensor
    states: States | None
    peak: float


@torch.inference_mode()
def _write(model: LanguageModel, place: _Place, tokens: int) -> _Place:
    """Generate `tokens` tokens greedily."""
    forget_peak()
    token = place.token
    states = place.states
    for _ in range(tokens):
        logits, states = model.step(token, states)
        token = logits.argmax(-1)
    return _Place(token, states, peak_mib())


def measure(preset: str, config: DecodeConfig) -> tuple[list[Row], list[Row]]:
    """Times and memory of one model with random weights."""
    torch.manual_seed(0)
    model = LanguageModel(find_preset(preset)).eval()
    place = _Place(torch.zeros(1, dtype=torch.long), None, 0.0)
    places = {}
    for last, position in pairwise([0, *sorted(config.positions)]):
        place = places[f"token {position:,}"] = _write(model, place, position - last)
    first, *_ = places
    entrants: dict[str, Callable[[], object]] = {
        name: partial(_write, model, place, config.tokens) for name, place in places.items()
    }
    contest = Contest("decode", f"{preset}, {config.tokens} tokens", first, entrants)
    memory = []
    for name, place in places.items():
        ratio = place.peak / places[first].peak
        memory.append(Row("decode", preset, name, 1, place.peak, "MiB", first, ratio, 1))
    return hold(contest, config.rounds), memory
