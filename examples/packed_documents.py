"""Packed documents in a DataLoader: no padding, and no state crosses from one to the next.

    python examples/packed_documents.py

Documents have different lengths. The collate function concatenates them into a batch of one and
passes their bounds; the model gives each its own state. As a check, every document alone gives the
same loss.
"""

import argparse
import random

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from statemix import LanguageModel, LMConfig

WORDS = ("the cat", "a dog", "the old king", "sees", "likes", "follows", "at night", "by the sea")


class Documents(Dataset[Tensor]):
    """Short texts of random words, as bytes."""

    def __init__(self, count: int) -> None:
        rng = random.Random(0)
        self.texts = [" ".join(rng.choices(WORDS, k=rng.randint(2, 12))) for _ in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(list(self.texts[index].encode()))


def pack(documents: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs and targets (1, sum of lengths), and the bounds of the documents."""
    inputs = torch.cat([document[:-1] for document in documents])
    targets = torch.cat([document[1:] for document in documents])
    lengths = torch.tensor([0, *(len(document) - 1 for document in documents)])
    return inputs[None], targets[None], lengths.cumsum(0)


def loss_of(model: LanguageModel, inputs: Tensor, targets: Tensor, bounds: Tensor) -> Tensor:
    logits, _ = model(inputs, cu_seqlens=bounds)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on packed documents.")
    parser.add_argument("--steps", type=int, default=150)
    steps = parser.parse_args().steps

    torch.manual_seed(0)
    options = {"n_blocks": 16, "block_size": 4}
    model = LanguageModel(LMConfig(vocab=256, width=64, layers=2, options=options))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    documents = Documents(2_000)
    loader = DataLoader(documents, batch_size=32, shuffle=True, collate_fn=pack, drop_last=True)
    done = 0
    while done < steps:
        for inputs, targets, bounds in loader:
            loss = loss_of(model, inputs, targets, bounds)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if done % 50 == 0:
                packed = f"{len(bounds) - 1} documents in {inputs.shape[1]} tokens"
                print(f"step {done}: loss {loss.item():.4f}, {packed}")
            done += 1
            if done == steps:
                break

    few = [documents[i] for i in range(4)]
    with torch.no_grad():
        together = loss_of(model, *pack(few)).item()
        tokens = sum(len(each) - 1 for each in few)
        alone = sum(loss_of(model, *pack([each])).item() * (len(each) - 1) for each in few) / tokens
    print(f"loss of four documents: packed {together:.6f}, one by one {alone:.6f}")
    assert abs(together - alone) < 1e-4


if __name__ == "__main__":
    main()
