"""The interface of a mixer, and the registry that builds mixers by name.

A mixer moves information between the steps of a sequence:

    y, state = mixer(x, state, cu_seqlens=..., mask=...)      x, y: (B, T, d)
    y_t, state = mixer.step(x_t, state)                       x_t, y_t: (B, d)

Calling `step` T times is equivalent to calling `forward` once. Any `nn.Module` with this interface
can be registered:

    @register_mixer("mine")
    class Mine(nn.Module): ...
"""

import inspect
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Protocol, TypeVar, Union, get_args, get_origin, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from statemix.config.model import read_choice
from statemix.ops.check import check_choice
from statemix.ops.lookup import Lookup, steps_from
from statemix.types import Mask, SequenceBounds

__all__ = [
    "MIXERS",
    "Mixer",
    "ReadsTables",
    "build_choice",
    "build_mixer",
    "check_mixed",
    "check_option",
    "mix",
    "register_mixer",
]


@runtime_checkable
class Mixer(Protocol):
    """A sequence mixer of width d.

    The state can be any object; its tensors have one row per sequence.
    """

    @property
    def state_size(self) -> int:
        """Number of scalars in the state of one sequence."""

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: Any = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Run all steps of a batch of sequences; return the outputs and the final state."""

    def step(
        self, x_t: Float[Tensor, "B d"], state: Any = None
    ) -> tuple[Float[Tensor, "B d"], Any]:
        """Run one step of a batch of sequences; return the outputs and the next state."""


class ReadsTables(nn.Module):
    """A mixer whose `forward` can skip redundant work.

    It accepts a `Lookup` in place of x, and computes the projections once per row of the table. It
    also accepts `read_from`, the first step whose output is returned.
    """


MIXERS: dict[str, type[nn.Module]] = {}
MixerClass = TypeVar("MixerClass", bound=type[nn.Module])
# The types of options that can be given on the command line or in a JSON file.
SPELT = {"bool": bool, "int": int, "float": float, "str": str, "None": NoneType}


def register_mixer(name: str) -> Callable[[MixerClass], MixerClass]:
    """Register a mixer class as `name` for all tasks, sweeps, benchmarks and reports."""
    if not isinstance(name, str):
        raise TypeError(
            f'`register_mixer` takes a name, got {name!r}. Write @register_mixer("mine").'
        )

    def register(cls: MixerClass) -> MixerClass:
        check_class(cls)
        if name in MIXERS and origin(MIXERS[name]) != origin(cls):
            raise ValueError(
                f"The mixer name {name!r} is taken by {origin(MIXERS[name])}. "
                f"Choose another for {origin(cls)}."
            )
        MIXERS[name] = cls
        return cls

    return register


def check_class(cls: type) -> None:
    """Raise an error unless `cls` is an `nn.Module` with a mixer's `forward` and `step`."""
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TypeError(f"A mixer must be a subclass of nn.Module, got {cls!r}.")
    for method, arguments in (
        ("forward", ("x", "state", "cu_seqlens", "mask")),
        ("step", ("x_t", "state")),
    ):
        function = getattr(cls, method, None)
        if function is None or function is nn.Module.forward:
            raise TypeError(f"{cls.__name__} must define `{method}` to be a mixer.")
        missing = set(arguments[1:]) - set(inspect.signature(function).parameters)
        if missing:
            raise TypeError(
                f"`{cls.__name__}.{method}` must take {', '.join(arguments)}: "
                f"{', '.join(sorted(missing))} missing."
            )


def origin(cls: type) -> str:
    """Return the qualified name of a class, which does not change when its module is reloaded."""
    return f"{cls.__module__}.{cls.__qualname__}"


def build_mixer(name: str, d_model: int, options: Mapping[str, Any]) -> nn.Module:
    """Build the mixer called `name` of width `d_model` with `options`."""
    check_choice("mixer", name, MIXERS)
    signature = inspect.signature(MIXERS[name])
    own = [p for p in signature.parameters.values() if p.name not in ("d_model", "device", "dtype")]
    for option, value in options.items():
        check_choice(f"option of mixer {name!r}:", option, [p.name for p in own])
        check_option(f"mixer {name!r}", option, value, signature.parameters[option].annotation)
    missing = [p.name for p in own if p.default is p.empty and p.name not in options]
    if missing:
        raise ValueError(
            f"The mixer {name!r} needs {', '.join(missing)}: "
            f"got {', '.join(options) or 'no options'}."
        )
    mixer = MIXERS[name](d_model, **options)
    if not isinstance(mixer, Mixer):
        raise ValueError(f"{type(mixer).__name__} must have a `state_size` to be a mixer.")
    return mixer


def build_choice(entry: str | Mapping[str, Any], d_model: int) -> nn.Module:
    """Build the mixer of an entry: a name, or {"mixer": name, option: value, ...}."""
    choice = read_choice(entry)
    return build_mixer(choice.name, d_model, choice.options)


def check_option(owner: str, name: str, value: Any, annotation: Any) -> None:
    """Raise an error unless `value` has the annotated type, or a type of the annotated union.

    Annotations with types other than those in SPELT are not checked.
    """
    annotation = SPELT.get(annotation, annotation) if isinstance(annotation, str) else annotation
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    if not all(kind in SPELT.values() for kind in kinds):
        return
    allowed = kinds + (int,) * (float in kinds)
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in kinds):
        spelt = " or ".join(
            {bool: "bool (true or false)", NoneType: "null"}.get(kind, kind.__name__)
            for kind in kinds
        )
        raise ValueError(f"The option `{name}` of {owner} must be of type {spelt}, got {value!r}.")


def mix(mixer: nn.Module, x: Tensor | Lookup, state: Any, read_from: int = 0) -> tuple[Tensor, Any]:
    """The outputs of a mixer at the steps `read_from` .. T − 1, and its final state."""
    if isinstance(mixer, ReadsTables):
        return check_mixed(mixer, mixer(x, state, read_from=read_from), steps_from(x, read_from))
    y, state = check_mixed(mixer, mixer(x, state), x)
    return y[:, read_from:], state


def check_mixed(mixer: nn.Module, mixed: Any, x: Tensor | Lookup) -> tuple[Tensor, Any]:
    """Return the output and the state from a mixer's result, after checking type and shape."""
    name = type(mixer).__name__
    if not (isinstance(mixed, tuple) and len(mixed) == 2):
        raise TypeError(
            f"The mixer {name} must return a tuple (output, state), got a {type(mixed).__name__}."
        )
    y, state = mixed
    if y.shape != x.shape:
        raise ValueError(
            f"The mixer {name} must return an output of the same shape as its input: "
            f"expected {tuple(x.shape)}, got {tuple(y.shape)}."
        )
    return y, state
