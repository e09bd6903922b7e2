"""Dataclasses from JSON: each field has its annotated type and range, or an error names it."""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from statemix.config.fields import field_types

__all__ = ["build", "shown"]

T = TypeVar("T")
_LONGEST = 60
_PLAIN: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", bool),
    int: ("a whole number", int),
    float: ("a number", int | float),
    str: ("text", str),
}


def shown(value: Any) -> str:
    """A value for an error message, cut to a few words."""
    if isinstance(value, int) and abs(value) >= 10**_LONGEST:  # Python refuses to print such digits
        return "a number of too many digits"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def build(kind: type[T], data: Any, name: str = "") -> T:
    """The dataclass `kind` with the values of `data`, read from JSON; lists become tuples."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{_named(name)} must be a JSON object, got {shown(data)}")
    cls: Any = kind
    known = {f.name: f for f in fields(cls)}
    if unknown := sorted(set(data) - set(known)):
        raise ValueError(
            f"unknown fields: {shown(', '.join(map(str, unknown)))}. Available: {', '.join(known)}"
        )
    required = (
        name for name, f in known.items() if f.default is f.default_factory is MISSING and f.init
    )
    if missing := [each for each in required if each not in data]:
        raise ValueError(f"it lacks {', '.join(missing)}")
    types = field_types(cls)
    return kind(**{key: _convert(key, value, types[key]) for key, value in data.items()})


def _named(name: str) -> str:
    return f"`{name}`" if name else "it"


def _convert(name: str, value: Any, annotation: Any) -> Any:
    """`value` as `annotation` wants it, or a ValueError."""
    if annotation is Any:
        return value
    if get_origin(annotation) is Annotated:
        kind, *limits = get_args(annotation)
        found = _convert(name, value, kind)
        for limit in limits:
            if found is not None and not limit.contains(found):
                raise ValueError(f"`{name}` must be {limit.text}, got {shown(value)}")
        return found
    if get_origin(annotation) in (Union, UnionType):
        return _convert_union(name, value, get_args(annotation))
    if get_origin(annotation) is Literal:
        return _one_of(name, value, get_args(annotation))
    if is_dataclass(annotation):
        return build(annotation, value, name)  # type: ignore[arg-type]
    return _convert_container(name, value, annotation)


def _convert_union(name: str, value: Any, kinds: tuple[Any, ...]) -> Any:
    """`value` as the first of `kinds` that takes it."""
    if value is None and NoneType in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is not NoneType:
            try:
                return _convert(name, value, kind)
            except ValueError as error:
                errors.append(error)
    raise errors[-1]


def _one_of(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(str, choices))}, got {shown(value)}"
        )
    return value


def _convert_container(name: str, value: Any, annotation: Any) -> Any:
    """`value` as a tuple, a list, a dictionary, or a plain value."""
    kind = get_origin(annotation) or annotation
    inside = get_args(annotation)
    if kind in (tuple, list, Sequence):
        if not isinstance(value, list | tuple):
            raise ValueError(f"`{name}` must be a list, got {shown(value)}")
        entry = inside[0] if inside else Any
        items = [_convert(name, each, entry) for each in value]
        return items if kind is list else tuple(items)
    if kind in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise ValueError(f"`{name}` must be a JSON object, got {shown(value)}")
        entry = inside[1] if inside else Any
        return {key: _convert(f"{name}.{key}", each, entry) for key, each in value.items()}
    return _plain(name, value, kind)


def _plain(name: str, value: Any, kind: Any) -> Any:
    """A number, a truth value or a text."""
    spelt, accepted = _PLAIN[kind]
    wrong = not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool)
    if wrong:
        raise ValueError(f"`{name}` must be {spelt}, got {shown(value)}")
    if kind is int and not -(1 << 63) <= value < 1 << 64:
        raise ValueError(f"`{name}` must have at most 64 bits, got {shown(value)}")
    if kind is float and not isinstance(value, float) and abs(value) > 1 << 64:
        raise ValueError(f"`{name}` must have at most 64 bits, got {shown(value)}")
    return value
