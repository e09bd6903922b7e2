"""The rows of the paper's tables, as mixers with a given number of states.

A BD-LRU of block size m has states / m blocks, and an H-LRU of order m as many channels: rows
differ in how states mix, not in how many there are.
"""

from dataclasses import replace
from typing import Any

from statemix.models import ModelConfig

__all__ = ["BASELINES", "bdlru", "block_sizes", "hlru", "mixer_of", "with_row"]

block_sizes = (1, 2, 3, 4, 5, 6, 8, 16)
BASELINES = ("LSTM", "Mamba2", "DeltaNet[-1,1]", "DeltaProduct4[-1,1]")
Mixer = tuple[str, dict[str, Any]]


def bdlru(m: int) -> str:
    return f"BD-LRU m{m}"


def hlru(m: int) -> str:
    return f"H-LRU m{m}"


def mixer_of(row: str, states: int) -> Mixer:
    """The name and options of a row's mixer.

    As in the published configurations, the DeltaNets have a decay, a short convolution and an
    output gate.
    """
    kind, _, size = row.partition(" m")
    if kind in ("BD-LRU", "H-LRU") and size.isdigit():
        m = int(size)
        n = max(1, round(states / m))
        if kind == "BD-LRU":
            return "bdlru", {"n_blocks": n, "block_size": m}
        return "hlru", {"n_channels": n, "order": m}
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
    """The same model with the mixer of `row`."""
    mixer, options = mixer_of(row, states)
    return replace(model, mixer=mixer, options=options)
