"""Time and memory per token at several positions: for a recurrence, they do not depend on them.

Each model generates tokens up to the last position, storing its states at each position and the
peak of the process's resident memory up to there. Then the tokens from each position on are timed
in turns, so that other load on the machine affects all of them alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from statemix.bench.config import DecodeConfig
from statemix.bench.foreign import FOREIGN, Foreign
from statemix.bench.measure import Contest, Row, hold
from statemix.bench.memory import forget_peak, peak_mib
from statemix.models import LanguageModel, find_preset
from statemix.models.lm import States

__all__ = ["measure", "measure_rivals"]

_OURS = ("bdlru-m4", "lstm")
_Step = Callable[[Tensor, Any], tuple[Tensor, Any]]


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


@torch.inference_mode()
def measure_rivals(size: str, batch: int, config: DecodeConfig) -> list[Row]:
    """Times of models of about the same size from the first position on, all in one contest."""
    torch.manual_seed(0)
    position = min(config.positions)
    prompt = torch.randint(2048, (batch, position))
    ours = [(name, LanguageModel(find_preset(f"{size}-{name}")).eval()) for name in _OURS]
    entrants: dict[str, Callable[[], object]] = {}
    for name, model in ours:
        _, states = model(prompt)
        entrants[name] = partial(_generate, model.step, prompt[:, -1], states, config.tokens)
    for name, make in FOREIGN.items():
        entrants[name] = partial(_generate_after, make, size, prompt, config.tokens, {})
    setting = f"{size}, B = {batch}, {config.tokens} tokens from {position}"
    return hold(Contest("decode", setting, _OURS[0], entrants), config.rounds)


def _generate(step: _Step, token: Tensor, states: Any, tokens: int) -> Any:
    """Generate `tokens` tokens greedily; return the last states."""
    for _ in range(tokens):
        logits, states = step(token, states)
        token = logits.argmax(-1)
    return states


def _generate_after(
    make: Callable[[str], Foreign], size: str, prompt: Tensor, tokens: int, kept: dict[str, Any]
) -> None:
    """Generate from where the last call ended; the first call builds the model, whose cache grows.

    A package that is not installed fails here, and is left out of the contest.
    """
    if not kept:
        foreign = make(size)
        foreign.model.eval()
        with torch.inference_mode():
            kept["states"] = foreign.run(prompt, None)[1]
        kept["step"] = foreign.step
    with torch.inference_mode():
        kept["states"] = _generate(kept["step"], prompt[:, -1], kept["states"], tokens)


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
