"""Does normalisation let m scale?  Compression with four gate functions (the paper's figure 2).

Block size and order grow from 1 to 16.  The sequences are shorter than the paper's: 8 or 16 tokens
of a vocabulary of 16, with 64 states in total and 10,000 sequences.  The ledger records a run whose
loss diverges as failed, which can happen with the gate function `none`.
"""

from collections.abc import Iterator
from dataclasses import replace

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

GATES = ("softmax", "sigmoid", "relu", "none")
SIZES = (1, 2, 4, 8, 16)


def cells() -> Iterator[Cell]:
    """Muon at 16 tokens, and AdamW at 8, the most that it learns in as many steps."""
    adamw = RunConfig(
        "compress", length=8, train_examples=10_000, batch=64, lr=3e-3, clip=1.0, epochs=12
    )
    muon = replace(
        adamw, length=16, batch=32, epochs=8, warmup=50, optimiser="muon", matrix_lr=0.015
    )
    for base, seed, kind in ((muon, 0, ""), (adamw, 0, ", AdamW, 8 tokens"), (muon, 1, "")):
        for name in (bdlru, hlru):
            for gate in GATES:
                for m in SIZES:
                    model = with_row(ModelConfig(width=64), name(m), states=64)
                    model = replace(model, options={**model.options, "gate": gate})
                    yield Cell(
                        name(m), gate + kind, base.optimiser, replace(base, model=model, seed=seed)
                    )
