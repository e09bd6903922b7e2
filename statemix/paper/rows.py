"""The rows of the paper's tables, as mixers of a given number of states.

A BD-LRU of m has states / m blocks, an H-LRU as many channels: what a row varies is how states mix, not how many there are.
"""

from dataclasses import replace
from typing import Any

from statemix.models import ModelConfig

block_sizes = (1, 2, 3, 4, 5, 6, 8, 16)
BASELINES = ("LSTM", "Mamba2", "DeltaNet[-1,1]", "DeltaProduct4[-1,1]")
Mixer = tuple[str, dict[str, Any]]


def bdlru(m: int) -> str:
    return f"BD-LRU m{m}"


def hlru(m: int) -> str:
    return f"H-LRU m{m}"


def mixer_of(row: str, states: int) -> Mixer:
    """A mixer's name and options, from its row.

    The published DeltaNet configurations have a decay, a short convolution and an output gate; so do these.
    """
    kind, _, size = row.partition(" m")
    if kind in ("BD-LRU", "H-LRU") and size.isdigit():
        n, m = max(1, round(states / int(size))), int(size)
        return (
            ("bdlru", {"n_blocks": n, "block_size": m})
            if kind == "BD-LRU"
            else ("hlru", {"n_channels": n, "order": m})
        )
    heads = {"heads": 2, "head_dim": 32}
    others: dict[str, Mixer] = {
        "LSTM": ("lstm", {"hidden": states}),
        "Mamba2": ("mamba2", {"d_state": 8}),
        "DeltaNet[-1,1]": ("gated_deltanet", heads),
        "DeltaProduct4[-1,1]": ("deltaproduct", {**heads, "products": 4}),
    }
    if row not in others:
        raise ValueError(
            f"Unknown row {row!r}. Available: BD-LRU m<size>, H-LRU m<size>, {', '.join(others)}."
        )
    return others[row]


def with_row(model: ModelConfig, row: str, states: int) -> ModelConfig:
    """The same model around the mixer of `row`."""
    mixer, options = mixer_of(row, states)
    return replace(model, mixer=mixer, options=options)
