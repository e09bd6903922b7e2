"""A certified model of S5, run for a million tokens.

    python examples/certified_s5.py

`examples/models/s5/` has a model of 75 kB that multiplies permutations of five elements, and a
proof that it is right on every word of every length. This program checks the proof from the
weights, and then runs the model on a word of a million random permutations, in pieces, next to the
exact product.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from statemix.proof import verify_certificate
from statemix.tasks import find_task

DIRECTORY = Path(__file__).parent / "models" / "s5"
PIECE = 50_000  # tokens that are read in one call


def main() -> None:
    parser = argparse.ArgumentParser(description="Run a certified model for many tokens.")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    tokens = parser.parse_args().tokens

    saved = verify_certificate(DIRECTORY / "certificate.json")
    print(f"{saved.task}: {saved.certificate.reason}")

    task = find_task("s5")
    word = task.examples(1, tokens, np.random.default_rng(0))
    model, states, wrong = saved.model.eval(), None, 0
    for first in range(0, tokens, PIECE):
        piece = slice(first, first + PIECE)
        with torch.no_grad():
            logits, states = model(torch.from_numpy(word.inputs[:, piece]), states)
        answers = logits[0].argmax(-1).numpy()
        wrong += int((answers != word.targets[0, piece]).sum())
    print(f"{tokens:,} tokens read, {wrong} wrong answers")
    assert wrong == 0


if __name__ == "__main__":
    main()
