"""Training in bfloat16: do the models learn what they learn in float32?

    statemix lm prepare sotu --out data/sotu --vocab 1024 --validation 0.05
    statemix sweep experiments/low_precision.py

Each run in float32 is one of another experiment, and its twin differs in `bf16` alone: products,
gates and values are then rounded to bfloat16, while states, sums and weights stay float32. S3 and
S5 with the preset `tracking`, which proves the model or restarts; and a language model of two
million parameters.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.models import ModelConfig
from statemix.models.presets import find_preset
from statemix.sweep import Cell
from statemix.train import RunConfig, tracking_preset
from statemix.train.metrics import accuracy_by_length

TEXT = "5cea3e064435b13c"  # digest of data/sotu, prepared as above
VOCABULARY = 1024
GROUPS = {"s3": 3, "s5": 5}
SEEDS = (800, 801, 802)
LENGTHS = (41, 101, 151, 201, 255, 1025)
PRECISIONS = {"float32": False, "bf16": True}


def tracker(task: str, m: int, seed: int) -> RunConfig:
    """The run of certified.py."""
    model = ModelConfig(options={"n_blocks": 32, "block_size": m})
    return tracking_preset(RunConfig(task, model, train_examples=100_000, seed=seed))


def language_model(seed: int) -> LMRunConfig:
    """The run of lm_small.py at the learning rate that has three seeds."""
    model: LMConfig = replace(find_preset("2m-bdlru-m4"), vocab=VOCABULARY)
    return LMRunConfig(
        model,
        TEXT,
        length=256,
        batch=4,
        steps=400,
        lr=8e-3,
        matrix_lr=4e-2,
        warmup=0.1,
        seed=seed,
    )


def cells() -> Iterator[Cell]:
    for precision, bf16 in PRECISIONS.items():
        for task, m in GROUPS.items():
            for seed in SEEDS:
                config = replace(tracker(task, m, seed), bf16=bf16)
                yield Cell(f"BD-LRU m{m}", task, precision, config)
        for seed in range(len(SEEDS)):
            yield Cell("2m-bdlru-m4", "text", precision, replace(language_model(seed), bf16=bf16))


def measure(config: RunConfig | LMRunConfig, *trained: Any) -> dict[str, Any]:
    """Accuracy of a tracker at each length, as in certified.py; nothing more for text."""
    if isinstance(config, LMRunConfig):
        return {}
    task, model = trained
    return {"by_length": accuracy_by_length(task, model, LENGTHS, 64, config.seed)}
