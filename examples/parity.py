"""Parity with a short training loop: a layer, an embedding, a head, and a second of training.

    python examples/parity.py
    python examples/parity.py --block-size 1        # a diagonal layer cannot flip a bit

Tokens are bits after a token for the beginning; the target at each step is whether the number of
ones so far is odd. Trained on 16 bits, the model holds at 4,096.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix import BDLRU

BEGIN = 2
WIDTH = 16


class Tagger(nn.Module):
    """Embedding → layer → head."""

    def __init__(self, block_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, WIDTH)
        self.layer = BDLRU(WIDTH, n_blocks=8, block_size=block_size)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        y, _ = self.layer(self.embed(tokens))
        return self.head(y[:, 1:])


def draw(count: int, length: int) -> tuple[Tensor, Tensor]:
    """Random bits after the first token, and the parity of each prefix."""
    bits = torch.randint(2, (count, length))
    return F.pad(bits, (1, 0), value=BEGIN), bits.cumsum(1) % 2


@torch.no_grad()
def accuracy(model: Tagger, length: int) -> float:
    tokens, targets = draw(64, length)
    return (model(tokens).argmax(-1) == targets).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a layer to track parity.")
    parser.add_argument("--block-size", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()

    torch.manual_seed(0)
    model = Tagger(options.block_size)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(options.steps):
        tokens, targets = draw(128, 16)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")

    print(f"accuracy at 16 bits {accuracy(model, 16):.4f}, at 4,096 {accuracy(model, 4096):.4f}")
    model.layer.sharpen(4.0)  # rows of gates come closer to selecting one state
    print(f"sharpened: at 4,096 {accuracy(model, 4096):.4f}")


if __name__ == "__main__":
    main()
