"""A decoder that predicts a class at every step.

    x = E[tokens]
    x = x + mixer(norm(x)),    x = x + channel(norm(x))        for each layer
    logits = W norm(x)

The model has no positional encoding; order is visible only through the mixer.
"""

from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from statemix.config.model import ModelConfig
from statemix.layers.gates import INIT_STD, make_linear
from statemix.layers.lookup import check_tokens, embed
from statemix.layers.mixer import Mixer, build_mixer, check_mixed, mix
from statemix.layers.mlp import build_channel_mixer
from statemix.ops.lookup import Lookup, gather, map_rows, steps_from

__all__ = ["Block", "States", "Tagger"]

States = list[Any]


class Block(nn.Module):
    """A sequence mixer and a channel mixer, each after a norm and added to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(config.width)
        self.mixer = build_mixer(config.mixer, config.width, config.options)
        self.channel_norm = nn.LayerNorm(config.width)
        self.channel = build_channel_mixer(config.channel_mixer, config.width)

    def forward(
        self,
        x: Tensor | Lookup,
        state: Any = None,
        read_from: int = 0,
        read_at: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        """The outputs of the steps `read_from` .. T − 1, and the state after the last.

        With `read_at` (B, T − read_from), only the N outputs where it is True: (N, d).
        """
        y, state = mix(self.mixer, map_rows(self.mixer_norm, x), state, read_from)
        x = gather(steps_from(x, read_from)) + y
        x = x if read_at is None else x[read_at]
        return x + self.channel(self.channel_norm(x)), state

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = check_mixed(
            self.mixer, cast(Mixer, self.mixer).step(self.mixer_norm(x_t), state), x_t
        )
        x_t = x_t + y
        return x_t + self.channel(self.channel_norm(x_t)), state


class Tagger(nn.Module):
    """Maps tokens (B, T) to logits (B, T, classes)."""

    def __init__(self, config: ModelConfig, vocab: int, classes: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab + config.bos, config.width)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = make_linear(config.width, classes)

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        states: States | None = None,
        *,
        read_from: int = 0,
        read_at: Bool[Tensor, "B T_read"] | None = None,
    ) -> tuple[Float[Tensor, "*read classes"], States]:
        """Logits of the steps `read_from` .. T − 1, and the states after the last step.

        With `states`, a sequence continues without a BOS token. With `read_at`, the logits are
        those of the N steps where it is True, (N, classes): nothing is computed at the others
        above the last mixer.
        """
        check_tokens("tokens", tokens, "(B, T)", self.embedding)
        begins = self.config.bos and states is None
        if begins:
            bos = tokens.new_full((tokens.shape[0], 1), self.embedding.num_embeddings - 1)
            tokens = torch.cat([bos, tokens], 1)
        x: Any = embed(self.embedding, tokens, cast(Block, self.blocks[0]).mixer)
        states = states or [None] * len(self.blocks)
        starts = [0] * (len(self.blocks) - 1) + [read_from + begins]  # only the last block's output
        after = []
        chosen = [None] * (len(self.blocks) - 1) + [read_at]
        for block, state, start, at in zip(self.blocks, states, starts, chosen, strict=True):
            x, state = block(x, state, start, at)  # noqa: PLW2901
            after.append(state)
        return self.head(self.norm(x)), after

    def step(
        self, tokens_t: Int[Tensor, " B"], states: States | None = None
    ) -> tuple[Float[Tensor, "B classes"], States]:
        """Compute the logits of one step and the states after it."""
        check_tokens("tokens_t", tokens_t, "(B)", self.embedding)
        if self.config.bos and states is None:
            _, states = self.advance(
                torch.full_like(tokens_t, self.embedding.num_embeddings - 1), None
            )
        x_t, states = self.advance(tokens_t, states)
        return self.head(self.norm(x_t)), states

    def advance(self, tokens_t: Tensor, states: States | None) -> tuple[Tensor, States]:
        """Run a step, tokens (B,), through all blocks; return (B, d) and the next states."""
        x_t = self.embedding(tokens_t)
        after = []
        for block, state in zip(self.blocks, states or [None] * len(self.blocks), strict=True):
            x_t, state = cast(Block, block).step(x_t, state)  # noqa: PLW2901
            after.append(state)
        return x_t, after
