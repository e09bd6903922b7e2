"""Linear recurrent networks whose states mix.

Names load on first use, so that `statemix --help` need not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "BDLRU": "statemix.layers",
    "HLRU": "statemix.layers",
    "MIXERS": "statemix.layers",
    "Mixer": "statemix.layers",
    "build_mixer": "statemix.layers",
    "register_mixer": "statemix.layers",
    "LMConfig": "statemix.models",
    "LanguageModel": "statemix.models",
    "NORMALISERS": "statemix.ops",
    "block_scan": "statemix.ops",
    "companion_scan": "statemix.ops",
    "gated_block_scan": "statemix.ops",
    "gated_companion_scan": "statemix.ops",
    "hop_scan": "statemix.ops",
    "normalise": "statemix.ops",
    "watch": "statemix.layers.watch",
}

__all__ = [
    "BDLRU",
    "HLRU",
    "MIXERS",
    "NORMALISERS",
    "LMConfig",
    "LanguageModel",
    "Mixer",
    "__version__",
    "block_scan",
    "build_mixer",
    "companion_scan",
    "gated_block_scan",
    "gated_companion_scan",
    "hop_scan",
    "normalise",
    "register_mixer",
    "watch",
]

if TYPE_CHECKING:
    from statemix.layers import BDLRU, HLRU, MIXERS, Mixer, build_mixer, register_mixer
    from statemix.layers.watch import watch
    from statemix.models import LanguageModel, LMConfig
    from statemix.ops import (
        NORMALISERS,
        block_scan,
        companion_scan,
        gated_block_scan,
        gated_companion_scan,
        hop_scan,
        normalise,
    )


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(
            f"module 'statemix' has no attribute {name!r}. Available: {', '.join(__all__)}."
        )
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
