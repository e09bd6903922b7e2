"""Can depth replace block size?  Products of permutations with one, two and three layers.

S4 has a chain of quotients, S4 / V4 = S3 and V4 = Z2 × Z2, whose factors fit into blocks of three.
One layer can therefore track the product in S3, and the next layer, which sees it, the rest.  S5
has no such chain, since its subgroup A5 is simple, so depth should not help blocks of four.  It
should not help blocks of two on S3 either, since they cannot represent its subgroup Z3.
`statemix.analysis.cascade` has the construction.

The recipe is `Muon, curriculum` of table_groups.  Models trained at sixteen tokens are also tested
at 256.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torch import nn

from statemix.models import ModelConfig
from statemix.paper import bdlru, with_row
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig
from statemix.train.metrics import accuracy_by_length

EXAMPLES = {"S3": 10_000, "S4": 50_000, "S5": 100_000}
PLACES = (
    ("S4", 3, 2),
    ("S4", 3, 1),
    ("S5", 4, 2),
    ("S3", 2, 2),
    ("S3", 2, 1),
    ("S4", 2, 2),
    ("S5", 4, 1),
    ("S4", 3, 3),
)
DEEP = (("S5", 3, 2), ("S5", 2, 2), ("S5", 4, 3), ("S4", 2, 3), ("S3", 2, 3))


def cell(group: str, m: int, layers: int, seed: int) -> Cell:
    model = replace(with_row(ModelConfig(width=64), bdlru(m), states=160), layers=layers)
    config = RunConfig(
        group.lower(),
        model,
        train_examples=EXAMPLES[group],
        clip=1.0,
        warmup=100,
        optimiser="muon",
        lr=4e-3,
        seed=seed,
    )
    grown = replace(
        config,
        curriculum=(2, 3, 4, 6, 9, 13),
        stage_steps=300,
        patience=0,
        epochs=1000,
        max_steps=4000,
    )
    return Cell(
        bdlru(m), f"{group}, {layers} layer{'s' if layers > 1 else ''}", "Muon, curriculum", grown
    )


def cells() -> Iterator[Cell]:
    yield from (cell(*PLACES[0], seed) for seed in (0, 1, 2))
    yield from (cell(*place, 0) for place in (*PLACES[1:], *DEEP))
    yield from (cell(*place, seed) for seed in (1, 2) for place in PLACES[1:4])


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    return {"by_length": accuracy_by_length(task, model, (16, 64, 256, 1024), 128, config.seed)}
