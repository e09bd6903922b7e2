"""How many sequences does it take to learn a group?

S3 with blocks of three and S4 with blocks of four, compared with an LSTM.
"""

from collections.abc import Iterator

from statemix.models import ModelConfig
from statemix.paper import bdlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

EXAMPLES = (60, 125, 250, 500, 1000, 2000, 4000)


def cells() -> Iterator[Cell]:
    for seed in (0, 1, 2):
        for task, rows in (
            ("s3", [bdlru(2), bdlru(3), "LSTM"]),
            ("s4", [bdlru(3), bdlru(4), "LSTM"]),
        ):
            for examples in EXAMPLES:
                for row in rows:
                    model = with_row(ModelConfig(width=64), row, states=96)
                    steps = {"batch": 32, "epochs": 2000, "max_steps": 2000, "patience": 300}
                    config = RunConfig(
                        task, model, train_examples=examples, lr=3e-3, clip=1.0, seed=seed, **steps
                    )
                    yield Cell(row, f"{task.upper()}, {examples} sequences", "plain", config)
