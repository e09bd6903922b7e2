"""Language models with a name: those of the paper, and small ones for a CPU.

    212m-*    the paper's: width 768, 12 layers, the vocabulary of the GPT-NeoX-20B tokenizer
    20m-*     for one GPU or a patient CPU: width 320, 6 layers, vocabulary 16,384
    2m-*      for a CPU in minutes, parameter-matched within a percent: width 128, 4 layers, vocabulary 2,048
    180k-*    for a CPU in seconds

A preset is an `LMConfig`: `replace(find_preset("2m-bdlru-m4"), vocab=4096)` is another model of the kind.
"""

from collections.abc import Iterable
from typing import Any

from statemix.config.model import LMConfig
from statemix.ops.check import check_choice


def block_mixers(sizes: Iterable[tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """BD-LRUs of n blocks of m states, from pairs (n, m)."""
    return {
        f"bdlru-m{m}": {"mixer": "bdlru", "options": {"n_blocks": n, "block_size": m}}
        for n, m in sizes
    }


def paper_presets() -> dict[str, LMConfig]:
    """The paper's parameter-matched models."""
    mixers = {
        **block_mixers([(2112, 1), (844, 2), (302, 4), (96, 8), (28, 16)]),
        "hlru-m16": {"mixer": "hlru", "options": {"n_channels": 242, "order": 16}},
        "lstm": {"mixer": "lstm", "options": {"hidden": 896}},
    }
    return {f"212m-{name}": LMConfig(vocab=50_280, **mixer) for name, mixer in mixers.items()}


def medium_presets() -> dict[str, LMConfig]:
    """What one GPU trains in an hour or two."""
    mixers = {
        **block_mixers([(336, 2), (120, 4)]),
        "lstm": {"mixer": "lstm", "options": {"hidden": 352}},
    }
    return {
        f"20m-{name}": LMConfig(vocab=16_384, width=320, layers=6, **mixer)
        for name, mixer in mixers.items()
    }


def small_presets() -> dict[str, LMConfig]:
    """Every kind of mixer with the same number of parameters."""
    mixers = {
        **block_mixers([(461, 1), (184, 2), (66, 4), (21, 8), (6, 16)]),
        "hlru-m2": {"mixer": "hlru", "options": {"n_channels": 305, "order": 2}},
        "hlru-m4": {"mixer": "hlru", "options": {"n_channels": 183, "order": 4}},
        "hlru-m16": {"mixer": "hlru", "options": {"n_channels": 54, "order": 16}},
        "lstm": {"mixer": "lstm", "options": {"hidden": 176}},
        "mamba2": {"mixer": "mamba2", "options": {"d_state": 128, "expand": 4}},
        "deltanet": {"mixer": "deltanet", "options": {"heads": 6, "head_dim": 60}},
    }
    return {
        f"2m-{name}": LMConfig(vocab=2048, width=128, layers=4, **mixer)
        for name, mixer in mixers.items()
    }


def tiny_presets() -> dict[str, LMConfig]:
    """For a first look."""
    mixers = {
        **block_mixers([(16, 4)]),
        "hlru-m4": {"mixer": "hlru", "options": {"n_channels": 44, "order": 4}},
    }
    return {
        f"180k-{name}": LMConfig(vocab=1024, width=48, layers=2, **mixer)
        for name, mixer in mixers.items()
    }


PRESETS: dict[str, LMConfig] = {
    **paper_presets(),
    **medium_presets(),
    **small_presets(),
    **tiny_presets(),
}


def find_preset(name: str) -> LMConfig:
    """The preset called `name`."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name]
