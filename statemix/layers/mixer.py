"""What every mixer is, and the table of those that a name can build.

A mixer moves information between the steps of a sequence:

    y, state = mixer(x, state, cu_seqlens=..., mask=...)      x, y: (B, T, d)
    y_t, state = mixer.step(x_t, state)                       x_t, y_t: (B, d)

and calling `step` T times is the same as calling `forward` once.  Any `nn.Module` that does so can be registered:

    @register_mixer("mine")
    class Mine(nn.Module): ...
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor, nn

from statemix.ops.check import check_choice


@runtime_checkable
class Mixer(Protocol):
    """A sequence mixer of width d; a state is whatever it returns, one row (or entry) a sequence."""

    @property
    def state_size(self) -> int:
        """How many numbers the state of one sequence holds."""

    def forward(self, x: Tensor, state: Any = None, *, cu_seqlens: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """All steps of a batch of sequences, and their final states."""

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """One step of a batch of sequences, and their next states."""


MIXERS: dict[str, type[nn.Module]] = {}
MixerClass = TypeVar("MixerClass", bound=type[nn.Module])


def register_mixer(name: str) -> Callable[[MixerClass], MixerClass]:
    """Make a mixer class known as `name` to every task, sweep, bench and report."""

    def register(cls: MixerClass) -> MixerClass:
        missing = [part for part in ("forward", "step", "state_size") if getattr(cls, part, None) in (None, nn.Module.forward)]
        if missing:
            raise TypeError(f"{cls.__name__} must define forward, step and state_size to be a mixer, {', '.join(missing)} missing.")
        if name in MIXERS and MIXERS[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"The mixer name {name!r} is taken by {MIXERS[name].__qualname__}. Choose another for {cls.__qualname__}.")
        MIXERS[name] = cls
        return cls

    return register


def build_mixer(name: str, d_model: int, options: Mapping[str, Any]) -> nn.Module:
    """The mixer called `name`, of width `d_model`, constructed with `options`."""
    check_choice("mixer", name, MIXERS)
    cls = MIXERS[name]
    known = [option for option in inspect.signature(cls).parameters if option not in ("d_model", "device", "dtype")]
    for option in options:
        check_choice(f"option of mixer {name!r}:", option, known)
    return cls(d_model, **options)
