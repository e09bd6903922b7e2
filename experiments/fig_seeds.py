"""The spread over ten seeds: S3 with blocks of one to three, with and without a BOS token."""

from collections.abc import Iterator
from dataclasses import replace

from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig


def cells() -> Iterator[Cell]:
    for row in (bdlru(1), bdlru(2), bdlru(3), hlru(3)):
        for bos in (True, False):
            for seed in range(10):
                model = replace(
                    with_row(ModelConfig(width=32, channel_mixer="none"), row, states=24), bos=bos
                )
                config = RunConfig("s3", model, lr=3e-3, clip=1.0, epochs=8, solved=2.0, seed=seed)
                yield Cell(row, "BOS" if bos else "no BOS", "plain", config)
