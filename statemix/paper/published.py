"""The paper's runs: every row in its sizes, at three learning rates, with five seeds.

Training is the paper's: no BOS token, no early stopping, 200 epochs with a cosine to 1e-5. Only the
epoch is chosen on a validation set; `statemix sweep --protocol paper` chooses it on the test set.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from statemix.config.model import ModelConfig
from statemix.config.presets import paper_protocol, paper_sizes
from statemix.config.task import RunConfig
from statemix.paper.rows import BASELINES, mixer_of

__all__ = ["EPOCHS", "HIDDEN", "SEQUENCES", "WIDTH", "published_models", "published_runs"]

WIDTH = 128
EPOCHS = 200
SEQUENCES = {  # in training, by column; the paper does not give those of the regular languages
    "S3-10k": (10_000,),
    "S3-250": (250,),
    "S4-50k": (50_000,),
    "S4-3k": (3_000,),
    "S5-100k": (100_000,),
    **dict.fromkeys(("recall", "copy", "compress"), (20_000, 10_000)),
}

_RATES = (1e-3, 5e-4, 1e-4)
_SEEDS = range(5)
HIDDEN = (128, 768, 2048)  # states; the published grids go up to 6,144 in some rows


def published_runs(
    config: RunConfig, row: str, hidden: tuple[int, ...] = HIDDEN
) -> Iterator[RunConfig]:
    """The runs of a row on the data of `config`."""
    full = replace(paper_protocol(paper_sizes(config)), protocol="honest")
    for model in published_models(full.model, row, hidden):
        for lr, seed in product(_RATES, _SEEDS):
            yield replace(full, model=model, lr=lr, seed=seed)


def published_models(
    model: ModelConfig, row: str, hidden: tuple[int, ...]
) -> Iterator[ModelConfig]:
    """The models of a row: one for each number of states, or the grid of a baseline."""
    if row not in BASELINES[1:]:
        options = [mixer_of(row, states)[1] for states in hidden]
    elif row == "Mamba2":
        options = [
            {"d_state": d_state, "expand": expand, "conv": conv}
            for d_state, expand, conv in product((2, 4, 8), (1, 8, 64), (2, 4))
        ]
    else:
        fixed = {**mixer_of(row, 0)[1], "form": "fla"}
        sizes = product((2, 4, 8), (8, 64, 512))
        options = [{**fixed, "heads": heads, "head_dim": size} for heads, size in sizes]
    mixer, _ = mixer_of(row, hidden[0])
    for chosen in options:
        yield replace(model, mixer=mixer, options=chosen)
