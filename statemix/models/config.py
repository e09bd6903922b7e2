"""The config of a model for the synthetic tasks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ModelConfig"]


@dataclass(frozen=True)
class ModelConfig:
    """The mixer and the sizes of a model.

    Args:
        mixer: name of a registered mixer, built with `options`.
        width: width of the residual stream.
        layers: number of blocks, each a sequence mixer followed by a channel mixer.
        channel_mixer: "swiglu", "mlp" or "none".
        bos: prepend a BOS token to every sequence, at which a state can be set to the identity.
    """

    mixer: str = "bdlru"
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 128
    layers: int = 1
    channel_mixer: str = "swiglu"
    bos: bool = True

    def __post_init__(self) -> None:
        # A config is saved as JSON, which has no NumPy scalars.
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self.options.items()
        }
        object.__setattr__(self, "options", plain)
        for name in ("width", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` of a model must be at least 1, got {getattr(self, name)}."
                )
