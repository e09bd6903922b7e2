"""Models as data: around which mixer, and how large."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import cycle, islice
from typing import Annotated, Any, Literal, NamedTuple

from statemix.config.build import build
from statemix.config.fields import (
    AT_LEAST_ONE,
    POSITIVE,
    Range,
    check_fields,
    check_known,
    check_options,
    explain_unknown,
)

__all__ = [
    "SIZES",
    "ChannelMixer",
    "LMConfig",
    "MixerChoice",
    "ModelConfig",
    "Size",
    "lm_config_from_dict",
    "read_choice",
]

Size = Annotated[int, AT_LEAST_ONE]
Depth = Annotated[int, Range("in 1 .. 4,096", lambda x: 1 <= x <= 4096)]
ChannelMixer = Literal["swiglu", "mlp", "published_swiglu", "published_mlp", "none"]
SIZES = {"bdlru": ("n_blocks", "block_size"), "hlru": ("n_channels", "order")}
_DEFAULT_SIZES = (32, 4)
_MULTIPLE = 8  # the inner width of the MLP is rounded up to a multiple of this


@explain_unknown
@dataclass(frozen=True)
class ModelConfig:
    """A model for a synthetic task."""

    mixer: str = "bdlru"
    """A name from `MIXERS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the mixer. BD-LRU and H-LRU default to 32 blocks (channels) of size (order) 4."""
    width: Size = 64
    """Width of the residual stream."""
    layers: Depth = 1
    """Number of layers, each a sequence mixer and a channel mixer."""
    channel_mixer: ChannelMixer = "swiglu"
    """The feed-forward layer after each sequence mixer."""
    bos: bool = True
    """Prepend a beginning-of-sequence token, at which a state can become the identity."""
    positions: Literal["normal", "smooth"] = "normal"
    """Initial positional embeddings of the autoencoder: normal noise, or smooth in time."""
    position_std: Annotated[float, POSITIVE] = 0.02
    """Standard deviation of the initial positional embeddings."""

    def __post_init__(self) -> None:
        check_options("options", self.options)
        sizes = dict(zip(SIZES.get(self.mixer, ()), _DEFAULT_SIZES, strict=False))
        given = {name: _plain(value) for name, value in self.options.items()}
        object.__setattr__(self, "options", sizes | given)
        check_fields(self)


def _plain(value: Any) -> Any:
    """A NumPy number as the Python number that JSON can hold."""
    return value.item() if hasattr(value, "item") else value


class MixerChoice(NamedTuple):
    """A mixer by name, with its options."""

    name: str
    options: Mapping[str, Any]

    def __str__(self) -> str:
        shown = ", ".join(f"{key}={_shown(value)}" for key, value in self.options.items())
        return f"{self.name}({shown})" if shown else self.name


def _shown(value: Any) -> str:
    """An option's value; one that is a mixer is shown as such."""
    return (
        str(read_choice(value)) if isinstance(value, Mapping) and "mixer" in value else f"{value}"
    )


def read_choice(entry: Any) -> MixerChoice:
    """The mixer that an entry of a config names: a name, or a mapping such as

    {"mixer": "attention", "heads": 4}, which has the options next to the name.
    """
    if isinstance(entry, str):
        return MixerChoice(entry, {})
    if not (isinstance(entry, Mapping) and isinstance(entry.get("mixer"), str)):
        raise ValueError(
            "A mixer must be given by its name, or as an object with the field `mixer` and the "
            f"mixer's options, got {entry!r}."
        )
    return MixerChoice(entry["mixer"], {k: v for k, v in entry.items() if k != "mixer"})


@explain_unknown
@dataclass(frozen=True)
class LMConfig:
    """A language model."""

    vocab: Size
    """Vocabulary size: token ids are 0 .. vocab − 1."""
    width: Size = 768
    """Width of the residual stream."""
    layers: Depth = 12
    """Number of layers, each a mixer and a gated MLP."""
    mixer: str = "bdlru"
    """A name from `MIXERS`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the mixer."""
    inner: Annotated[int | None, AT_LEAST_ONE] = None
    """Inner width of the MLP; 8/3 of the width, rounded up to a multiple of 8, if None."""
    norm_eps: Annotated[float, POSITIVE] = 1e-6
    """Added to the mean square inside each RMS norm."""
    tie: bool = False
    """Share one matrix between the embedding and the head."""
    mixers: tuple[str | Mapping[str, Any], ...] = ()
    """Mixers of consecutive layers, repeated over the depth; if empty, all layers have `mixer`. The
    name of `mixer` has `options`; other names have their defaults, or own options in an object."""

    def __post_init__(self) -> None:
        if isinstance(self.mixers, str) or not isinstance(self.mixers, Sequence):
            raise ValueError(f"`mixers` must list the mixers of layers, got {self.mixers!r}.")
        object.__setattr__(self, "mixers", tuple(self.mixers))
        check_fields(self)
        for entry in self.mixers:
            read_choice(entry)

    @property
    def pattern(self) -> tuple[MixerChoice, ...]:
        """The mixers of the first layers, which repeat over the depth."""
        own = MixerChoice(self.mixer, self.options)
        return tuple(own if each == self.mixer else read_choice(each) for each in self.mixers) or (
            own,
        )

    @property
    def layer_mixers(self) -> tuple[MixerChoice, ...]:
        """The mixer of each layer."""
        return tuple(islice(cycle(self.pattern), self.layers))

    @property
    def title(self) -> str:
        """The names of the mixers in the pattern."""
        return ", ".join(choice.name for choice in self.pattern)

    @property
    def mlp_width(self) -> int:
        """The inner width of the MLP."""
        if self.inner is not None:
            return self.inner
        return math.ceil(8 * self.width / 3 / _MULTIPLE) * _MULTIPLE

    def to_dict(self) -> dict[str, Any]:
        """The config as JSON can hold it; without a pattern there is no field `mixers`."""
        found = {**asdict(self), "options": dict(self.options)}
        mixers = [each if isinstance(each, str) else dict(each) for each in found.pop("mixers")]
        return {**found, "mixers": mixers} if mixers else found


def lm_config_from_dict(data: Mapping[str, Any]) -> LMConfig:
    """The config that `data`, read from JSON, describes."""
    check_known(LMConfig, data, "a language model")
    if "vocab" not in data:
        raise ValueError("The config of a language model must have the field `vocab`.")
    return build(LMConfig, data)
