"""A bidirectional tagger on padded batches: is a bracket matched?

    python examples/tagger.py

Sequences of brackets, letters and padding, of different lengths. An opening bracket is matched if a
closing one follows before the next opening one, a closing one if an opening one precedes it since
the last closing one. One layer reads from the left, one from the right.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix import BDLRU

OPEN, CLOSE, LETTER, PADDING = range(4)
UNSCORED = -100


class Tagger(nn.Module):
    """Embedding → both directions → head."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, width)
        self.left = BDLRU(width, n_blocks=16, block_size=2)
        self.right = BDLRU(width, n_blocks=16, block_size=2)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        mask = tokens != PADDING
        from_left, _ = self.left(x, mask=mask)
        from_right, _ = self.right(x, mask=mask, reverse=True)
        return self.head(x + from_left + from_right)


def tags(tokens: list[int]) -> list[int]:
    """1 for a bracket that is matched, 0 for one that is not; letters are not scored."""
    found = [UNSCORED if token == LETTER else 0 for token in tokens]
    opened = None
    for t, token in enumerate(tokens):
        if token == OPEN:
            opened = t
        elif token == CLOSE and opened is not None:
            found[opened] = found[t] = 1
            opened = None
    return found


def draw(count: int, longest: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences of random lengths, padded on the right, and their tags."""
    lengths = torch.randint(4, longest + 1, (count,), generator=rng).tolist()
    rows = [torch.randint(3, (n,), generator=rng).tolist() for n in lengths]
    inputs = [torch.tensor(row) for row in rows]
    targets = [torch.tensor(tags(row)) for row in rows]
    pad = nn.utils.rnn.pad_sequence
    return (
        pad(inputs, batch_first=True, padding_value=PADDING),
        pad(targets, batch_first=True, padding_value=UNSCORED),
    )


@torch.no_grad()
def accuracy(model: Tagger, longest: int) -> float:
    tokens, targets = draw(256, longest, torch.Generator().manual_seed(1))
    scored = targets != UNSCORED
    return (model(tokens).argmax(-1)[scored] == targets[scored]).float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a bidirectional tagger.")
    parser.add_argument("--steps", type=int, default=300)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    rng = torch.Generator().manual_seed(0)
    model = Tagger()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        tokens, targets = draw(64, 24, rng)
        loss = F.cross_entropy(
            model(tokens).flatten(0, 1), targets.flatten(), ignore_index=UNSCORED
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.4f}")
    print(
        f"accuracy up to 24 tokens {accuracy(model, 24):.4f}, up to 200 {accuracy(model, 200):.4f}"
    )


if __name__ == "__main__":
    main()
