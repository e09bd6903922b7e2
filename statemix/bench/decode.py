"""What the ten-thousandth token costs, against the hundredth: a recurrence has the same state to read at both.

Each model writes token after token; its states at the positions are kept, and peaks of the process's resident memory on the way.  Then
the tokens from each position on are timed side by side, in turns, so that a busy machine disturbs all alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from statemix.bench.measure import Contest, Row, hold
from statemix.bench.memory import forget_peak, peak_mib
from statemix.models import LanguageModel, find_preset
from statemix.models.lm import States


@dataclass(frozen=True)
class DecodeConfig:
    """Which models, at which positions, how many tokens from each on are timed, and how often."""

    presets: tuple[str, ...]
    positions: tuple[int, ...]
    tokens: int
    rounds: int


@dataclass(frozen=True)
class Place:
    """Where a model stands in its text: the token to be read, its states, and the peak memory on the way there, in MiB."""

    token: Tensor
    states: States | None
    peak: float


@torch.inference_mode()
def write(model: LanguageModel, place: Place, tokens: int) -> Place:
    """Go on by `tokens` tokens, each the likeliest."""
    forget_peak()
    token, states = place.token, place.states
    for _ in range(tokens):
        logits, states = model.step(token, states)
        token = logits.argmax(-1)
    return Place(token, states, peak_mib())


def measure(preset: str, config: DecodeConfig) -> tuple[list[Row], list[Row]]:
    """Times and memory of one model with random weights."""
    torch.manual_seed(0)
    model, places = (
        LanguageModel(find_preset(preset)).eval(),
        {0: Place(torch.zeros(1, dtype=torch.long), None, 0.0)},
    )
    for position in sorted(config.positions):
        last = max(places)
        places[position] = write(model, places[last], position - last)
    names = {position: f"token {position:,}" for position in sorted(config.positions)}
    entrants: dict[str, Callable[[], object]] = {
        name: partial(write, model, places[position], config.tokens)
        for position, name in names.items()
    }
    first = min(config.positions)
    times = hold(
        Contest("decode", f"{preset}, {config.tokens} tokens", names[first], entrants),
        config.rounds,
    )
    memory = [
        Row(
            "decode",
            preset,
            name,
            1,
            places[p].peak,
            "MiB",
            names[first],
            places[p].peak / places[first].peak,
            1,
        )
        for p, name in names.items()
    ]
    return times, memory
