"""Why block size beats width: products of permutations of three elements.

Tokens are elements of the group S3, and the target at each step is the product of all tokens so
far, x_1 · x_2 · … · x_t. A diagonal recurrence (block size 1) cannot track a permutation, however
wide it is; a block of three states can, exactly.

    python examples/s3_products.py
"""

from itertools import permutations

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

from statemix import BDLRU

ELEMENTS = list(permutations(range(3)))
BOS = len(ELEMENTS)
WIDTH = 32
BATCH = 128
LENGTH = 16
EPOCHS = 8
RATE = 3e-3
MODELS = {
    "width 24, blocks of 1": (24, 1),
    "width 96, blocks of 1": (96, 1),
    "width 24, blocks of 3": (8, 3),
}


def products(count: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw random sequences in S3, each after a BOS token, and compute their running products."""
    table = torch.tensor(
        [[ELEMENTS.index(tuple(a[i] for i in b)) for b in ELEMENTS] for a in ELEMENTS]
    )
    tokens = torch.randint(
        len(ELEMENTS), (count, length), generator=torch.Generator().manual_seed(seed)
    )
    running = [tokens[:, 0]]
    for t in range(1, length):
        running.append(table[running[-1], tokens[:, t]])
    inputs = torch.cat([torch.full((count, 1), BOS), tokens], 1)
    targets = torch.stack(running, 1)
    return inputs, targets


class Tagger(nn.Module):
    """Embedding → x + mixer(norm x) → norm → vocabulary."""

    def __init__(self, n_blocks: int, block_size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BOS + 1, WIDTH)
        self.mixer = BDLRU(WIDTH, n_blocks, block_size)
        self.norm_in = nn.LayerNorm(WIDTH)
        self.norm_out = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, len(ELEMENTS))
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        x = x + self.mixer(self.norm_in(x))[0]
        return self.head(self.norm_out(x))[:, 1:]


def train(model: Tagger, progress: Progress, label: str) -> None:
    """Train on 10,000 sequences of 16 tokens."""
    inputs, targets = products(10_000, LENGTH, seed=1)
    steps = EPOCHS * (len(inputs) // BATCH)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, eta_min=1e-5)
    bar = progress.add_task(label, total=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH)[: len(inputs) // BATCH]:
            loss = F.cross_entropy(model(inputs[rows]).flatten(0, 1), targets[rows].flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            progress.update(bar, advance=1, description=f"{label}  loss {loss.item():.3f}")


@torch.no_grad()
def accuracy(model: Tagger, length: int) -> float:
    """Measure the share of correct products in new sequences of `length` tokens."""
    inputs, targets = products(1_000, length, seed=2)
    return (model(inputs).argmax(-1) == targets).float().mean().item()


def main() -> None:
    table = Table(
        "model",
        "states",
        f"accuracy, {LENGTH} tokens",
        "accuracy, 64 tokens",
        title="Products in S3",
    )
    with Progress(console=Console(stderr=True)) as progress:
        for label, (n_blocks, block_size) in MODELS.items():
            torch.manual_seed(0)
            model = Tagger(n_blocks, block_size)
            train(model, progress, label)
            table.add_row(
                label,
                str(model.mixer.state_size),
                f"{accuracy(model, LENGTH):.3f}",
                f"{accuracy(model, 64):.3f}",
            )
    Console().print(table)


if __name__ == "__main__":
    main()
