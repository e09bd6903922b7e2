"""The state of any mixer after every step, for decoders that backtrack."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from statemix.layers.baselines.attention import Attention
from statemix.layers.unit import LinearRecurrentUnit
from statemix.types import Mask

__all__ = ["trace"]


def trace(
    mixer: nn.Module, x: Float[Tensor, "B T d"], state: Any = None, *, mask: Mask | None = None
) -> tuple[Float[Tensor, "B T d"], list[Any]]:
    """The outputs of `mixer`, and its state after each of the T steps.

    Linear recurrent units return all states at once, and so does attention without a mask; any
    other mixer runs step by step.
    """
    if isinstance(mixer, LinearRecurrentUnit):
        y, h = mixer.trace(x, state, mask=mask)
        return y, list(h.unbind(1))
    if isinstance(mixer, Attention) and mask is None:
        return mixer.trace(x, state)
    y = x.new_empty(x.shape)
    states = []
    for t in range(x.shape[1]):
        steps = slice(t, t + 1)
        mask_t = None if mask is None else mask[:, steps]
        y[:, steps], state = mixer(x[:, steps], state, mask=mask_t)
        states.append(state)
    return y, states
