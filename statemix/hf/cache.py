"""What generation keeps of the past: the states of each layer, as many numbers after a million tokens as after one.

Assisted and prompt-lookup decoding try tokens and take some back.  A recurrence cannot be run backwards, but its last states can be kept:
from `activate_past_recording` on, every layer holds the states since the last `crop`, and `crop` goes back to one of them.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from statemix.layers.mixer import Mixer
from statemix.layers.trace import trace

__all__ = ["ROLLBACK", "RecurrentCache", "RecurrentLayer"]

ROLLBACK = 64  # states that one call may leave to go back to, unless the caller wants more


class RecurrentLayer:
    """The states of one layer: the current one last, and before it those that `crop` can go back to.

    `states[0]` may be None, the state before the first token.
    """

    is_compileable, is_croppable, is_sliding, supports_early_init = False, True, False, False

    def __init__(self) -> None:
        self.states: list[Any] = [None]
        self.seen = 0
        self.record_past = False

    def advance(self, mixer: nn.Module, x: Tensor, mask: Tensor | None, keep: int) -> Tensor:
        """Run `mixer` over x (B, T, d) from the current state; when recording, keep the states after each of the last `keep` steps."""
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
        parts = []
        if bulk:
            y, state = mixer(
                x[:, :bulk], self.states[-1], mask=None if mask is None else mask[:, :bulk]
            )
            parts, self.states = [y], [state]
        y, states = trace(
            mixer, x[:, bulk:], self.states[-1], mask=None if mask is None else mask[:, bulk:]
        )
        self.push(states)
        return torch.cat([*parts, y], 1)

    def push(self, states: list[Any]) -> None:
        """Go on to the last of `states`."""
        self.states = [*self.states, *states] if self.record_past else states[-1:]

    def crop(self, tokens_to_remove: int) -> None:
        """Go back by −`tokens_to_remove` tokens, and keep no state but that."""
        if tokens_to_remove > 0:
            raise ValueError(
                f"`crop` takes minus the number of tokens to remove, got {tokens_to_remove}."
            )
        if -tokens_to_remove >= len(self.states):
            raise ValueError(
                f"The cache can go back by {len(self.states) - 1} tokens at most, got {-tokens_to_remove}. "
                "Call `activate_past_recording` before the tokens that may be taken back."
            )
        self.states = [self.states[len(self.states) - 1 + tokens_to_remove]]
        self.seen += tokens_to_remove

    def activate_past_recording(self) -> None:
        """Keep every state from now on until `crop`."""
        self.record_past = True

    def stop_past_recording(self) -> None:
        """Keep no state but the current one, now and from now on."""
        self.record_past, self.states = False, self.states[-1:]

    def reset(self) -> None:
        """Forget everything."""
        self.states, self.seen = [None], 0

    def select(self, choose: Callable[[Tensor], Tensor]) -> None:
        """Choose rows of every state."""
        self.states = [map_state(choose, state) for state in self.states]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take the rows that a beam search goes on with."""
        self.select(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep the rows `indices`."""
        self.select(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row."""
        self.select(lambda x: x.repeat_interleave(repeats, 0))

    def tensors(self) -> list[Tensor]:
        """All tensors that are kept."""
        found: list[Tensor] = []
        self.select(lambda x: found.append(x) or x)  # type: ignore[func-returns-value]
        return found


class RecurrentCache(Cache):
    """One `RecurrentLayer` a layer; passed to `generate` as `past_key_values`, it goes on where it stands.

    `guessing` is set while `generate` goes on from it by assisted decoding, which hands the model the text from its beginning.
    """

    layers: list[Any]
    guessing: bool = False

    def __init__(self, layers: int) -> None:
        super().__init__(layers=cast(Any, [RecurrentLayer() for _ in range(layers)]))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens the states have seen."""
        return self.layers[layer_idx].seen

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """−1: there is no longest sequence."""
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """The length that a mask over past and present would have, and its offset."""
        return self.get_seq_length(layer_idx) + query_length, 0

    def stop_past_recording(self) -> None:
        """Keep only the current states, as before `activate_past_recording`."""
        for layer in self.layers:
            layer.stop_past_recording()

    @property
    def batch_size(self) -> int:
        """Rows of the states, −1 before the first token."""
        tensors = self.layers[0].tensors()
        return tensors[0].shape[0] if tensors else -1

    @property
    def nbytes(self) -> int:
        """Bytes that the states take."""
        return sum(x.numel() * x.element_size() for layer in self.layers for x in layer.tensors())


def map_state(function: Callable[[Tensor], Tensor], state: Any) -> Any:
    """`function` of every tensor of a state: tensors, None, and tuples, lists and dictionaries of them."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        return function(state)
    if isinstance(state, dict):
        return {key: map_state(function, value) for key, value in state.items()}
    if isinstance(state, tuple | list):
        return type(state)(map_state(function, value) for value in state)
    raise TypeError(
        f"The state of a mixer must be made of tensors, tuples, lists and dictionaries, got {type(state).__name__}."
    )
