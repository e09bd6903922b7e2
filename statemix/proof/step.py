"""One step of a tagger whose gates only copy, in float64 and with bounds on every rounding error.

    chosen[i] = argmax of the raw gates of row i,    h'[i] = h[chosen[i]], or v[i] if it is the last

A state is a copy of some v, so its value is known to the error of v, and no error grows with time.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.layers import BDLRU
from statemix.layers.mlp import NoChannelMixer
from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.rounding import Bounded, add, layer_norm, linear

__all__ = ["Stepped", "check_provable", "initial_states", "step"]

States = list[Float[Tensor, "S n m"]]


@dataclass(frozen=True)
class Stepped:
    """The result of a step: states, logits, and how clearly each row chose its gate.

    `gate_margin` is the smallest distance between the largest gate of a row and the next one that
    leads to another value, less both errors; `loaded` bounds the errors of the values that each
    layer can load; `inputs` are those of each layer's mixer, after its norm.
    """

    states: States
    logits: Bounded
    gate_margin: Float[Tensor, " S"]
    loaded: list[Float[Tensor, "S n m"]]
    inputs: list[Float[Tensor, "S d"]]


def check_provable(model: nn.Module) -> None:
    """Raise an error unless `model` is a tagger of BD-LRUs whose gates are hard."""
    if not isinstance(model, Tagger):
        raise ValueError(f"Only a `Tagger` can be certified, got {type(model).__name__}.")
    if not all(bool(weight.isfinite().all()) for weight in model.state_dict().values()):
        raise ValueError("Only finite weights can be certified, got infinity or NaN.")
    for block in model.blocks:
        mixer = cast(Block, block).mixer
        if not isinstance(mixer, BDLRU):
            raise ValueError(
                f"Only models of BD-LRUs can be certified, got a {type(mixer).__name__}."
            )
        if mixer.gate != "hardmax":
            raise ValueError(
                f"The gates must be hard to be certified, got the gate function {mixer.gate!r}. "
                "Train with --preset tracking, or call `statemix.train.harden(model)`."
            )
        if mixer.selectivity != "full":
            raise ValueError(
                "The bounds on rounding cover gates that see the full input, "
                f"got selectivity {mixer.selectivity!r}. Train with --options selectivity=full."
            )
        if not isinstance(cast(Block, block).channel, NoChannelMixer):
            raise ValueError(
                "The bounds on rounding cover models without a channel mixer. "
                "Train with --channel-mixer none, as --preset tracking does."
            )


def initial_states(model: Tagger) -> States:
    """The states (1, n, m) before the first letter, in float64."""
    states = []
    for block in model.blocks:
        mixer = cast(BDLRU, cast(Block, block).mixer)
        h0 = torch.zeros(mixer.state_shape) if mixer.h0 is None else mixer.h0.detach()
        states.append(h0.double().unsqueeze(0))
    return states


def step(
    model: Tagger,
    letters: Int[Tensor, " S"],
    states: States,
    errors: list[Float[Tensor, "n m"]],
    unit: float,
) -> Stepped:
    """Read a letter in each of S states, whose values are known to `errors`."""
    embedded = model.embedding.weight.detach().double()[letters]
    x = Bounded(embedded, torch.zeros_like(embedded))
    after = []
    loaded = []
    inputs = []
    margin = torch.full((len(letters),), torch.inf, dtype=torch.float64)
    for block, h, error in zip(model.blocks, states, errors, strict=True):
        own = cast(Block, block)
        normed = layer_norm(own.mixer_norm, x, unit)
        h_next, v_error, clear = _mix(cast(BDLRU, own.mixer), normed, h, unit)
        margin = torch.minimum(margin, clear)
        known = Bounded(h_next.flatten(1), torch.maximum(error, v_error).flatten(1))
        x = add(x, linear(cast(BDLRU, own.mixer).W_o, known, unit), unit)
        after.append(h_next)
        loaded.append(v_error)
        inputs.append(normed.value)
    return Stepped(after, _read(model, x, unit), margin, loaded, inputs)


def _read(model: Tagger, x: Bounded, unit: float) -> Bounded:
    return linear(model.head, layer_norm(model.norm, x, unit), unit)


def _mix(
    mixer: BDLRU, x: Bounded, h: Tensor, unit: float
) -> tuple[Tensor, Float[Tensor, "S n m"], Float[Tensor, " S"]]:
    """The next states, bounds on the errors of what they may load, and the smallest margin."""
    gates = linear(cast(nn.Linear, mixer.W_g), x, unit)
    v = linear(mixer.W_v, x, unit)
    raw = gates.value.unflatten(1, mixer.gate_shape)
    blur = gates.error.unflatten(1, mixer.gate_shape)
    chosen = raw.argmax(-1, keepdim=True)
    values = v.value.unflatten(1, mixer.state_shape)
    sources = torch.cat([h.unsqueeze(2).expand(*raw.shape[:-1], -1), values.unsqueeze(-1)], -1)
    copied = sources.gather(-1, chosen)
    alike = sources == copied
    least = (raw - blur).masked_fill(~alike, -torch.inf).amax(-1)
    most = (raw + blur).masked_fill(alike, -torch.inf).amax(-1)
    copied = copied.squeeze(-1)
    return copied, v.error.unflatten(1, mixer.state_shape), (least - most).flatten(1).amin(1)
