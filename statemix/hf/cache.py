"""The cache for generation: the state of each layer, whose size does not grow with the text.

Assisted and prompt-lookup decoding propose tokens and reject some of them. A recurrence cannot be
run backwards, but its last states can be stored: after `activate_past_recording`, every layer keeps
the states since the last `crop`, and `crop` rolls back to one of them.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from statemix.layers.mixer import Mixer
from statemix.layers.trace import trace

__all__ = ["ROLLBACK", "RecurrentCache", "RecurrentLayer"]

ROLLBACK = 64  # states that one call stores for rolling back, unless the caller wants more


class RecurrentLayer:
    """The states of one layer: those that `crop` can roll back to, and the current one last.

    `states[0]` may be None, the state before the first token.
    """

    is_compileable = False
    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self) -> None:
        self.states: list[Any] = [None]
        self.seen = 0
        self.record_past = False

    def advance(self, mixer: nn.Module, x: Tensor, mask: Tensor | None, keep: int) -> Tensor:
        """Run `mixer` over x (B, T, d) from the current state.

        While recording, store the states after each of the last `keep` steps.
        """
        self.seen += x.shape[1]
        if x.shape[1] == 1 and mask is None:
            y_t, state = cast(Mixer, mixer).step(x[:, 0], self.states[-1])
            self.push([state])
            return y_t.unsqueeze(1)
        if not self.record_past:
            y, state = mixer(x, self.states[-1], mask=mask)
            self.push([state])
            return y
        bulk = max(x.shape[1] - keep, 0)
        first_mask, last_mask = (None, None) if mask is None else (mask[:, :bulk], mask[:, bulk:])
        parts = []
        if bulk:
            y, state = mixer(x[:, :bulk], self.states[-1], mask=first_mask)
            parts.append(y)
            self.states = [state]
        y, states = trace(mixer, x[:, bulk:], self.states[-1], mask=last_mask)
        self.push(states)
        return torch.cat([*parts, y], 1)

    def push(self, states: list[Any]) -> None:
        """Advance to the last of `states`."""
        self.states = [*self.states, *states] if self.record_past else states[-1:]

    def crop(self, tokens_to_remove: int) -> None:
        """Roll back by −`tokens_to_remove` tokens, and drop all other states."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"`crop` takes minus the number of tokens to remove, got {tokens_to_remove}."
            )
        if -tokens_to_remove >= len(self.states):
            raise ValueError(
                f"The cache can roll back by at most {len(self.states) - 1} tokens, "
                f"got {-tokens_to_remove}. "
                "Call `activate_past_recording` before the tokens that may be rejected."
            )
        self.states = [self.states[len(self.states) - 1 + tokens_to_remove]]
        self.seen += tokens_to_remove

    def activate_past_recording(self) -> None:
        """Store every state until the next `crop`."""
        self.record_past = True

    def stop_past_recording(self) -> None:
        """Drop all states but the current one, and record no more."""
        self.record_past = False
        self.states = self.states[-1:]

    def reset(self) -> None:
        """Return to the state before the first token."""
        self.states = [None]
        self.seen = 0

    def select(self, choose: Callable[[Tensor], Tensor]) -> None:
        """Apply `choose`, which selects rows, to every tensor of every state."""
        self.states = [_map_state(choose, state) for state in self.states]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows that a beam search continues."""
        self.select(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        self.select(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.select(lambda x: x.repeat_interleave(repeats, 0))

    def tensors(self) -> list[Tensor]:
        """All tensors of all states."""
        found: list[Tensor] = []
        self.select(lambda x: found.append(x) or x)  # type: ignore[func-returns-value]
        return found


class RecurrentCache(Cache):
    """One `RecurrentLayer` per layer; `generate` continues from it as `past_key_values`.

    `guessing` is set during assisted decoding, which passes the full text to the model, including
    the tokens that the cache has seen.
    """

    layers: list[Any]
    guessing: bool = False

    def __init__(self, layers: int) -> None:
        super().__init__(layers=cast(Any, [RecurrentLayer() for _ in range(layers)]))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens that the states have seen."""
        return self.layers[layer_idx].seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """−1, since the length is not limited."""
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The length of a mask over past and present tokens, and its offset."""
        return self.get_seq_length(layer_idx) + query_length, 0

    def stop_past_recording(self) -> None:
        """Drop all states but the current ones, as before `activate_past_recording`."""
        for layer in self.layers:
            layer.stop_past_recording()

    @property
    def batch_size(self) -> int:
        """Number of rows of the states; −1 before the first token."""
        tensors = self.layers[0].tensors()
        return tensors[0].shape[0] if tensors else -1

    @property
    def nbytes(self) -> int:
        """Size of the states in bytes."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer.tensors())


def _map_state(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """Apply `function` to every tensor of a state: tensor, None, tuple, list or dictionary."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: _map_state(function, value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(_map_state(function, value) for value in state)
    raise TypeError(
        "The state of a mixer must consist of tensors, tuples, lists and dictionaries, "
        f"got {type(state).__name__}."
    )
