"""An encoder whose last output has to hold the whole sequence, and a decoder that spells it out.

    x = E[tokens] + P,    z = (x + mixer(norm(x)))[last]
    y[t] = z + P[t],      y = LN W_2 gelu(LN W_1 y) .. ,      logits = W LN(y)

The decoder sees z and a position, nothing else of the sequence.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.config.model import ModelConfig
from statemix.layers.gates import INIT_STD, make_linear
from statemix.models.tagger import Block


class Autoencoder(nn.Module):
    """Tokens (B, T) to logits (B, T, classes), through the state at the last token."""

    def __init__(self, config: ModelConfig, vocab: int, classes: int, length: int) -> None:
        super().__init__()
        self.config, self.length = config, length
        self.embedding = nn.Embedding(vocab, config.width)
        self.positions = nn.Parameter(torch.empty(length, config.width))
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        nn.init.normal_(self.positions, std=INIT_STD)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        stages: list[nn.Module] = []
        for _ in range(2):
            stages += [
                nn.LayerNorm(config.width),
                make_linear(config.width, config.width),
                nn.GELU(),
            ]
        self.decoder = nn.Sequential(
            *stages, nn.LayerNorm(config.width), make_linear(config.width, classes)
        )

    def forward(
        self, tokens: Int[Tensor, "B T"], states: list[Any] | None = None
    ) -> tuple[Float[Tensor, "B T classes"], list[Any]]:
        """Logits at every position; the sequence is always whole, so states neither enter nor leave."""
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"The autoencoder has {self.length} positions, got a sequence of {tokens.shape[1]}."
            )
        positions = self.positions[: tokens.shape[1]]
        x = self.embedding(tokens) + positions
        for block in self.blocks:
            x, _ = block(x)
        return self.decoder(x[:, -1:] + positions), []
