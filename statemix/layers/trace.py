"""The state after every step, of any mixer: what a decoder needs that may have to go back."""

from typing import Any

from torch import Tensor, nn

from statemix.layers.unit import LinearRecurrentUnit


def trace(
    mixer: nn.Module, x: Tensor, state: Any = None, *, mask: Tensor | None = None
) -> tuple[Tensor, list[Any]]:
    """Outputs (B, T, d) of `mixer` and its state after each step, T of them.

    Linear recurrent units have them at hand; any other mixer is called a step at a time.
    """
    if isinstance(mixer, LinearRecurrentUnit):
        y, h = mixer.trace(x, state, mask=mask)
        return y, list(h.unbind(1))
    y, states = x.new_empty(x.shape), []
    for t in range(x.shape[1]):
        y[:, t : t + 1], state = mixer(
            x[:, t : t + 1], state, mask=None if mask is None else mask[:, t : t + 1]
        )
        states.append(state)
    return y, states
