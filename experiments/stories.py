"""Which mixers learn to follow a story, and how far does it hold?

    statemix lm prepare stories:swaps                       # also cups, round, light
    statemix lm prepare stories:swaps,start=told
    statemix sweep experiments/stories.py
    statemix sweep experiments/stories.py --rows 'BD-LRU m = 5' --columns swaps

Language models of width 64 read 100,000 stories once, in the order of their curriculum (none to
eight events), and are tested on new stories with up to 64 events. All have one layer, except
attention and the hybrid, and no MLP to speak of: a wide one learns short stories by heart. BD-LRU
and H-LRU have a short convolution before them and an output gate behind them, as Mamba-2 and
DeltaNet always do. Their initial state is learned, and their input gates start almost closed: a
state can then hardly change but by exchanging what it has, which is what events do. Their gates are
sharpened in the cool-down. The last word of a story, its answer, has a hundred times the weight of
other words: it is one in thirty, and most of the others cannot be predicted.

Three seeds on swaps with a fixed start, one elsewhere.
"""

from collections.abc import Iterator
from typing import Any

from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.data.stories import read_stories
from statemix.lm import SavedModel
from statemix.lm.stories import measure_stories
from statemix.lm.tokenizer import open_tokenizer
from statemix.sweep import Cell

TEXTS = {  # stories: digest of their prepared text, its vocabulary, its windows of LENGTH tokens
    "stories:swaps": ("993324bdfe694862", 134, 1120),
    "stories:light": ("a690d567b699cbe7", 131, 1343),
    "stories:round": ("1161be7985ae98be", 137, 1167),
    "stories:cups": ("c00af8f72214dd8f", 135, 1516),
    "stories:swaps,start=told": ("294210e4a30093f8", 134, 2037),
}
LENGTH = 2048
KERNEL = 6
HOLD = {"std": 0.5, "own_bias": 6.0, "input_bias": -4.0}  # hold, and read almost nothing
STATES = 80
SEEDS = 3


def around(inner: dict[str, Any]) -> dict[str, Any]:
    """A mixer with a short convolution before it and an output gate behind it."""
    gated = {"mixer": "output_gate", "inner": inner}
    return {"mixer": "short_conv", "options": {"inner": gated, "kernel": KERNEL}}


def models() -> dict[str, dict[str, Any]]:
    """All models by name."""
    start = {"init": HOLD, "learn_initial_state": True}

    def blocks(m: int) -> dict[str, Any]:
        """A BD-LRU with blocks of m states."""
        return around({"mixer": "bdlru", "n_blocks": STATES // m, "block_size": m, **start})

    channels = {"mixer": "hlru", "n_channels": STATES // 3, "order": 3, **start}
    attention = {"mixer": "output_gate", "inner": {"mixer": "attention", "heads": 4}}
    convolved = {"mixer": "short_conv", "inner": attention, "kernel": KERNEL}
    return {
        "BD-LRU m = 5": blocks(5),
        "LSTM": {"mixer": "lstm", "options": {"hidden": 64}},
        "BD-LRU m = 3": blocks(3),
        "BD-LRU m = 1": blocks(1),
        "H-LRU m = 3": around(channels),
        "Mamba-2": {"mixer": "mamba2", "options": {"head_dim": 32, "d_state": 32}},
        "DeltaNet[-1,1]": {"mixer": "deltanet", "options": {"heads": 2, "head_dim": 32}},
        "attention": {**around({"mixer": "attention", "heads": 4}), "layers": 2},
        "hybrid": {**blocks(5), "layers": 2, "mixers": ("short_conv", convolved)},
    }


def cells() -> Iterator[Cell]:
    """All models on swaps, then on the other kinds, then more seeds on swaps."""
    for name in TEXTS:
        for row, model in models().items():
            yield cell(row, name, model, seed=0)
    for seed in range(1, SEEDS):
        for row, model in models().items():
            yield cell(row, "stories:swaps", model, seed)


def cell(row: str, name: str, model: dict[str, Any], seed: int) -> Cell:
    """A run of one model on one kind of stories."""
    text, vocab, windows = TEXTS[name]
    sizes = {"width": 64, "layers": 1, "inner": 1}
    is_ours = row.startswith(("BD-LRU", "H-LRU", "hybrid"))
    config = LMRunConfig(
        LMConfig(vocab, **{**sizes, **model}),
        text,
        length=LENGTH,
        batch=1,
        steps=windows,
        optimiser="adamw",
        lr=1e-2,
        beta2=0.99,
        weight_decay=0.0,
        warmup=30,
        cooldown=0.3,
        sharpen=1.004 if is_ours else 1.0,
        order="text",
        answers=100.0,
        seed=seed,
    )
    return Cell(row, name.removeprefix("stories:"), "curriculum", config)


def measure(config: LMRunConfig, saved: SavedModel) -> dict[str, Any]:
    """Accuracy of the answer by number of events."""
    name = next(name for name, (text, _, _) in TEXTS.items() if text == config.data)
    tokenizer, end = open_tokenizer(saved)
    measured = measure_stories(saved.model, tokenizer, end, read_stories(name), stories=200)
    return {"accuracy": {str(each.events): each.accuracy for each in measured}}
