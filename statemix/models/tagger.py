"""A decoder that predicts a class at every step.

    x = E[tokens]
    x = x + mixer(norm(x)),    x = x + channel(norm(x))        for each layer
    logits = W norm(x)

No positions: what a step knows of time, the mixer told it.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.config.model import ModelConfig
from statemix.layers.gates import INIT_STD, Projection
from statemix.layers.mixer import Mixer, build_mixer, check_mixed
from statemix.layers.mlp import build_channel_mixer
from statemix.layers.unit import LinearRecurrentUnit

States = list[Any]
FEW = 4  # tokens for each entry of the vocabulary from which gates are looked up


class Block(nn.Module):
    """A sequence mixer and a channel mixer, each behind a norm and beside the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(config.width)
        self.mixer = build_mixer(config.mixer, config.width, config.options)
        self.channel_norm = nn.LayerNorm(config.width)
        self.channel = build_channel_mixer(config.channel_mixer, config.width)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = check_mixed(self.mixer, self.mixer(self.mixer_norm(x), state), x)
        x = x + y
        return x + self.channel(self.channel_norm(x)), state

    def forward_lookup(
        self, table: Tensor, tokens: Tensor, state: Any = None
    ) -> tuple[Tensor, Any]:
        """`forward(table[tokens])`, with the mixer's gates computed once for each row of the table."""
        y, state = cast(LinearRecurrentUnit, self.mixer).forward_lookup(
            self.mixer_norm(table), tokens, state
        )
        x = F.embedding(tokens, table) + y
        return x + self.channel(self.channel_norm(x)), state

    def can_look_up(self, table: Tensor, tokens: Tensor) -> bool:
        """Whether looking up is the same thing, faster: the vocabulary is small, and nobody listens at the mixer."""
        quiet = not (self.mixer._forward_hooks or self.mixer._forward_pre_hooks)
        return (
            isinstance(self.mixer, LinearRecurrentUnit)
            and quiet
            and tokens.numel() >= FEW * table.shape[0]
        )

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y, state = check_mixed(
            self.mixer, cast(Mixer, self.mixer).step(self.mixer_norm(x_t), state), x_t
        )
        x_t = x_t + y
        return x_t + self.channel(self.channel_norm(x_t)), state


class Tagger(nn.Module):
    """Tokens (B, T) to logits (B, T, classes)."""

    def __init__(self, config: ModelConfig, vocab: int, classes: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocab + config.bos, config.width)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = Projection(config.width, classes)

    def forward(
        self, tokens: Int[Tensor, "B T"], states: States | None = None
    ) -> tuple[Float[Tensor, "B T classes"], States]:
        """Logits at every step and the states after the last; with `states` a sequence goes on, and no BOS token begins it."""
        begins = self.config.bos and states is None
        if begins:
            bos = tokens.new_full((tokens.shape[0], 1), self.embedding.num_embeddings - 1)
            tokens = torch.cat([bos, tokens], 1)
        before = states or [None] * len(self.blocks)
        x, state = self.enter(tokens, before[0])
        after = [state]
        for block, state in zip(self.blocks[1:], before[1:], strict=True):
            x, state = block(x, state)  # noqa: PLW2901
            after.append(state)
        return self.head(self.norm(x[:, 1:] if begins else x)), after

    def enter(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Embedding and first block."""
        first, table = cast(Block, self.blocks[0]), self.embedding.weight
        if first.can_look_up(table, tokens):
            return first.forward_lookup(table, tokens, state)
        return first(self.embedding(tokens), state)

    def step(
        self, tokens_t: Int[Tensor, " B"], states: States | None = None
    ) -> tuple[Float[Tensor, "B classes"], States]:
        """Logits of one step."""
        if self.config.bos and states is None:
            _, states = self.advance(
                torch.full_like(tokens_t, self.embedding.num_embeddings - 1), None
            )
        x_t, states = self.advance(tokens_t, states)
        return self.head(self.norm(x_t)), states

    def advance(self, tokens_t: Tensor, states: States | None) -> tuple[Tensor, States]:
        x_t, after = self.embedding(tokens_t), []
        for block, state in zip(self.blocks, states or [None] * len(self.blocks), strict=True):
            x_t, state = cast(Block, block).step(x_t, state)  # noqa: PLW2901
            after.append(state)
        return x_t, after
