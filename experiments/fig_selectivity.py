"""What must the gates depend on?  Compression with full, pointwise and no selectivity.

Accuracy against m and against parameters, compared with a convolution and baselines.  The
sequences are short, as in fig_normalisation.
"""

from collections.abc import Iterator
from dataclasses import replace

from statemix.models import ModelConfig
from statemix.paper import BASELINES, bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

SELECTIVITY = ("full", "pointwise", "none")
SIZES = (1, 2, 4, 8, 16)


def cells() -> Iterator[Cell]:
    base = RunConfig(
        "compress",
        ModelConfig(width=64),
        length=8,
        train_examples=10_000,
        batch=64,
        lr=3e-3,
        clip=1.0,
        epochs=12,
    )
    for seed in (0, 1):
        for m in SIZES:
            for selectivity in SELECTIVITY:
                for name in (bdlru, hlru):
                    model = with_row(base.model, name(m), states=64)
                    model = replace(model, options={**model.options, "selectivity": selectivity})
                    yield Cell(name(m), selectivity, "plain", replace(base, model=model, seed=seed))
            conv = replace(base.model, mixer="conv", options={"kernel": 2 * m})
            yield Cell(f"Conv k{2 * m}", "none", "plain", replace(base, model=conv, seed=seed))
        for row in BASELINES[:3]:
            yield Cell(
                row,
                "full",
                "plain",
                replace(base, model=with_row(base.model, row, states=64), seed=seed),
            )
