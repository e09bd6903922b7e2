"""What a synthetic model is made of, as data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a model around a mixer.

    Args:
        mixer: a name from `MIXERS`, with its `options`.
        width: of the residual stream.
        layers: blocks of a sequence mixer and a channel mixer.
        channel_mixer: "swiglu", "mlp" or "none".
        bos: begin every sequence with a token of its own, at which a state can become the identity.
    """

    mixer: str = "bdlru"
    options: Mapping[str, Any] = field(default_factory=dict)
    width: int = 128
    layers: int = 1
    channel_mixer: str = "swiglu"
    bos: bool = True

    def __post_init__(self) -> None:
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self.options.items()
        }
        object.__setattr__(
            self, "options", plain
        )  # a config is written as JSON, which knows no numbers of numpy
        for name in ("width", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(
                    f"`{name}` of a model must be at least 1, got {getattr(self, name)}."
                )
