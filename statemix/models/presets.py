"""Named language models: the models of the paper, and smaller ones.

    212m-*    the paper's models: width 768, 12 layers, vocabulary of the GPT-NeoX-20B tokenizer
    20m-*     trains on one GPU in hours: width 320, 6 layers, vocabulary 16,384
    2m-*      trains on a CPU in minutes: width 128, 4 layers, vocabulary 2,048;
              parameter counts match within one percent
    180k-*    trains on a CPU in seconds: width 48, 2 layers, vocabulary 1,024

For a first model, `RECOMMENDED` has the lowest perplexity after the same tokens of the 2m-* presets
in experiments/lm_small.py, and the most tokens per second in experiments/equal_minutes.py.
A preset is an `LMConfig`, which `replace(find_preset("2m-bdlru-m4"), vocab=4096)` adapts.
"""

from collections.abc import Iterable
from typing import Any

from statemix.config.model import LMConfig
from statemix.ops.check import check_choice

__all__ = ["PRESETS", "RECOMMENDED", "find_preset"]

RECOMMENDED = "2m-bdlru-m2"


def block_mixers(sizes: Iterable[tuple[int, int]]) -> dict[str, dict[str, Any]]:
    """Make BD-LRU options for each pair (n, m): n blocks of m states."""
    return {
        f"bdlru-m{m}": {"mixer": "bdlru", "options": {"n_blocks": n, "block_size": m}}
        for n, m in sizes
    }


def around_bdlru(n: int, m: int) -> dict[str, Any]:
    """A BD-LRU of n blocks of m states, with a short convolution before it and an output gate."""
    inside = {"mixer": "bdlru", "n_blocks": n, "block_size": m}
    conv = {"mixer": "short_conv", "inner": inside, "kernel": 4}
    return {"mixer": "output_gate", "options": {"inner": conv}}


def paper_presets() -> dict[str, LMConfig]:
    """The parameter-matched models of the paper."""
    mixers = {
        **block_mixers([(2112, 1), (844, 2), (302, 4), (96, 8), (28, 16)]),
        "hlru-m16": {"mixer": "hlru", "options": {"n_channels": 242, "order": 16}},
        "lstm": {"mixer": "lstm", "options": {"hidden": 896}},
    }
    return {f"212m-{name}": LMConfig(vocab=50_280, **mixer) for name, mixer in mixers.items()}


def medium_presets() -> dict[str, LMConfig]:
    """Models that train on one GPU in one to two hours."""
    mixers = {
        **block_mixers([(336, 2), (120, 4)]),
        "lstm": {"mixer": "lstm", "options": {"hidden": 352}},
    }
    return {
        f"20m-{name}": LMConfig(vocab=16_384, width=320, layers=6, **mixer)
        for name, mixer in mixers.items()
    }


def small_presets() -> dict[str, LMConfig]:
    """All kinds of mixers, with matching parameter counts."""
    mixers = {
        **block_mixers([(461, 1), (184, 2), (66, 4), (21, 8), (6, 16)]),
        "hlru-m2": {"mixer": "hlru", "options": {"n_channels": 305, "order": 2}},
        "hlru-m4": {"mixer": "hlru", "options": {"n_channels": 183, "order": 4}},
        "hlru-m16": {"mixer": "hlru", "options": {"n_channels": 54, "order": 16}},
        "lstm": {"mixer": "lstm", "options": {"hidden": 176}},
        "mamba2": {"mixer": "mamba2", "options": {"d_state": 128, "expand": 4}},
        "deltanet": {"mixer": "deltanet", "options": {"heads": 6, "head_dim": 60}},
        "attention": {"mixer": "attention", "layers": 7, "inner": 376},
        "hybrid": {
            "mixer": "bdlru",
            "options": {"n_blocks": 82, "block_size": 4},
            "mixers": ("bdlru", "bdlru", "bdlru", "attention"),
        },
        "bdlru-m4-conv-gate": around_bdlru(61, 4),
        "bdlru-m8-rank32": {
            "mixer": "bdlru",
            "options": {"n_blocks": 52, "block_size": 8, "gate_rank": 32},
        },
    }
    return {
        f"2m-{name}": LMConfig(**{"vocab": 2048, "width": 128, "layers": 4, **mixer})
        for name, mixer in mixers.items()
    }


def tiny_presets() -> dict[str, LMConfig]:
    """Models for quick tests."""
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
    """Return the preset called `name`."""
    check_choice("preset", name, PRESETS)
    return PRESETS[name]
