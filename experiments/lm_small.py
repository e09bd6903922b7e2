"""Does moderate mixing win in language, too?

    statemix lm prepare sotu --out data/sotu --vocab 1024 --validation 0.05
    statemix sweep experiments/lm_small.py
    statemix sweep experiments/lm_small.py --rows 'bdlru-m*' --columns a

The paper's three panels with models of about two million parameters, a size that a CPU can train.
Every model reads the same tokens in the same order. Muon trains all models: with so few tokens,
AdamW, the paper's optimiser, reaches a higher perplexity (docs/explanation/log.md).

    a   perplexity by block size m and learning rate: BD-LRU, H-LRU, LSTM, Mamba-2 and DeltaNet with
        the same number of parameters; three seeds at the learning rate that suits most of them
    b   perplexity against the number of states for each m: half and twice as many blocks as in a
    c   perplexity and speed of H-LRU and BD-LRU with the same number of parameters: runs of panel a
"""

from collections.abc import Iterator
from dataclasses import replace

from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.models.presets import find_preset
from statemix.sweep import Cell

TEXT = "5cea3e064435b13c"  # digest of data/sotu, prepared as above
VOCABULARY = 1024
MODELS = (
    "bdlru-m1",
    "bdlru-m2",
    "bdlru-m4",
    "bdlru-m8",
    "bdlru-m16",
    "hlru-m2",
    "hlru-m4",
    "hlru-m16",
    "lstm",
    "mamba2",
    "deltanet",
)
LEARNING_RATES = (4e-3, 2e-3, 8e-3, 1.6e-2)
MATRIX_RATE = 5  # Muon's learning rate for matrices, as a multiple of the learning rate
SEEDED = 8e-3  # the learning rate that runs with seeds 1 and 2 as well
WIDTHS = (0.5, 2.0)


def cells() -> Iterator[Cell]:
    """Panel a at every learning rate, panel b at the first, then more seeds of panel a."""
    models = {name: replace(find_preset(f"2m-{name}"), vocab=VOCABULARY) for name in MODELS}
    for lr in LEARNING_RATES:
        for name, model in models.items():
            yield Cell(name, "a", "muon", make_config(model, lr, seed=0))
    for name, model in widened(models):
        yield Cell(name, "b", "muon", make_config(model, LEARNING_RATES[0], seed=0))
    for seed in (1, 2):
        for name, model in models.items():
            yield Cell(name, "a", "muon", make_config(model, SEEDED, seed))
    yield Cell("lstm", "a", "muon", make_config(models["lstm"], LEARNING_RATES[0], seed=1))


def make_config(model: LMConfig, lr: float, seed: int) -> LMRunConfig:
    """A run on the text at a learning rate."""
    return LMRunConfig(
        model,
        TEXT,
        length=256,
        batch=4,
        steps=400,
        lr=lr,
        matrix_lr=MATRIX_RATE * lr,
        warmup=0.1,
        seed=seed,
    )


def widened(models: dict[str, LMConfig]) -> Iterator[tuple[str, LMConfig]]:
    """BD-LRUs with half and twice as many blocks."""
    for name, model in models.items():
        if name.startswith("bdlru"):
            for factor in WIDTHS:
                blocks = max(1, round(factor * model.options["n_blocks"]))
                yield (
                    f"{name} × {factor}",
                    replace(model, options={**model.options, "n_blocks": blocks}),
                )
