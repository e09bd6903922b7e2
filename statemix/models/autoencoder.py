"""An encoder whose last output has to hold the full sequence, and a decoder that spells it out.

    x = E[tokens] + P,    z = (x + mixer(norm(x)))[last]
    y[t] = z + P[t],      y = LN W_2 gelu(LN W_1 y) .. ,      logits = W LN(y)

The decoder sees z and a position, and nothing else of the sequence. Positions start from noise, as
in the published models, or as smooth functions of time, so that neighbours are alike:

    P[t, k] = s √2 cos(w_k t + φ_k),    w_k ~ N(0, 1/4²),    φ_k ~ U(0, 2π)
"""

import math
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.config.model import ModelConfig
from statemix.layers.gates import INIT_STD, make_linear
from statemix.layers.lookup import check_tokens, embed
from statemix.models.tagger import Block

__all__ = ["Autoencoder", "draw_positions"]

_FREQUENCY_STD = 0.25


class Autoencoder(nn.Module):
    """Tokens (B, T) to logits (B, T, classes), through the output at the last token."""

    def __init__(self, config: ModelConfig, vocab: int, classes: int, length: int) -> None:
        super().__init__()
        self.config = config
        self.length = length
        self.embedding = nn.Embedding(vocab, config.width)
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        positions = draw_positions(config.positions, config.position_std, length, config.width)
        self.positions = nn.Parameter(positions)
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
        self, tokens: Int[Tensor, "B T"], states: list[Any] | None = None, *, read_from: int = 0
    ) -> tuple[Float[Tensor, "B T_read classes"], list[Any]]:
        """Logits of the positions `read_from` .. T − 1.

        The input is a full sequence, so states neither enter nor leave.
        """
        check_tokens("tokens", tokens, "(B, T)", self.embedding)
        if tokens.shape[1] > self.length:
            raise ValueError(
                f"The autoencoder has {self.length} positions, got a sequence of {tokens.shape[1]}."
            )
        positions = self.positions[: tokens.shape[1]]
        x: Any = embed(self.embedding, tokens, cast(Block, self.blocks[0]).mixer, positions)
        last = max(tokens.shape[1] - 1, 0)
        for block, start in zip(self.blocks, [0] * (len(self.blocks) - 1) + [last], strict=True):
            x, _ = block(x, None, start)
        return self.decoder(x + positions[read_from:]), []


def draw_positions(kind: str, std: float, length: int, width: int) -> Float[Tensor, "T d"]:
    """Positional embeddings at initialisation, each entry with the standard deviation `std`."""
    if kind == "normal":
        return nn.init.normal_(torch.empty(length, width), std=std)
    w = _FREQUENCY_STD * torch.randn(width)
    phase = 2 * math.pi * torch.rand(width)
    t = torch.arange(length).unsqueeze(1)
    return std * math.sqrt(2) * torch.cos(w * t + phase)
