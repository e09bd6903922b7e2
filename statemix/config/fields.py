"""Fields of a config: their types, ranges and help texts, declared once.

A field is an annotated attribute followed by its help text:

    lr: Annotated[float, POSITIVE] = 3e-3
    \"\"\"Peak learning rate.\"\"\"

`check_fields` validates a config against its annotations. The command line shows the help texts.
"""

import ast
import inspect
import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, wraps
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

__all__ = [
    "AT_LEAST_ONE",
    "FRACTION",
    "NON_NEGATIVE",
    "POSITIVE",
    "SHARPENING",
    "Range",
    "base_type",
    "check_fields",
    "check_known",
    "check_options",
    "differing_fields",
    "explain_unknown",
    "field_help",
    "field_types",
]


@dataclass(frozen=True)
class Range:
    """The values that a number may have: a test, and its wording in an error."""

    text: str
    contains: Callable[[float], bool]


AT_LEAST_ONE = Range("at least 1", lambda x: x >= 1)
NON_NEGATIVE = Range("finite and not negative", lambda x: 0 <= x < math.inf)
POSITIVE = Range("above zero and finite", lambda x: 0 < x < math.inf)
SHARPENING = Range("at least 1 and below 2", lambda x: 1.0 <= x < 2.0)
FRACTION = Range("in [0, 1)", lambda x: 0 <= x < 1)


_LARGEST = (1 << 63) - 1


@cache
def field_types(cls: type) -> dict[str, Any]:
    """The annotation of each field of the dataclass `cls`, with its ranges."""
    hints = get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in fields(cls)}


def base_type(annotation: Any) -> Any:
    """The type inside an `Annotated`."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


@cache
def field_help(cls: type) -> dict[str, str]:
    """The help text of each field: the string below its declaration, in `cls` or a base class."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for declaration, text in zip(body.body, body.body[1:], strict=False):
            if isinstance(declaration, ast.AnnAssign) and isinstance(text, ast.Expr):
                name = ast.unparse(declaration.target)
                found[name] = inspect.cleandoc(ast.literal_eval(text.value))
    return found


@dataclass(frozen=True)
class _Field:
    """What an annotation demands: one of `choices`, or a value of `kinds` within `limits`."""

    name: str
    choices: tuple[str, ...]
    kinds: tuple[Any, ...]
    configs: tuple[type, ...]
    takes_options: bool
    limits: tuple[Range, ...]


@cache
def _declared(cls: type) -> tuple[_Field, ...]:
    """The fields of the dataclass `cls`."""
    found = []
    for name, annotation in field_types(cls).items():
        kind = base_type(annotation)
        is_choice = get_origin(kind) is Literal
        kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        field = _Field(
            name,
            choices=get_args(kind) if is_choice else (),
            kinds=() if is_choice else kinds,
            configs=tuple(kind for kind in kinds if _is_config(kind)),
            takes_options=any(get_origin(kind) is Mapping for kind in kinds),
            limits=get_args(annotation)[1:] if get_origin(annotation) is Annotated else (),
        )
        found.append(field)
    return tuple(found)


def check_fields(config: Any) -> None:
    """Raise a ValueError unless every field of `config` has its declared type and range."""
    cls: Any = type(config)
    for field in _declared(cls):
        _check(field, getattr(config, field.name))


def _check(field: _Field, value: Any) -> None:
    name = field.name
    if field.choices:
        if value not in field.choices:
            raise ValueError(f"Unknown {name} {value!r}. Available: {', '.join(field.choices)}.")
        return
    if value is None and NoneType in field.kinds:
        return
    _check_kind(field, value)
    _check_number(name, value, field.kinds)
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"`{name}` must have at most 63 bits, got {value}.")
    for limits in field.limits:
        if not limits.contains(value):
            raise ValueError(f"`{name}` must be {limits.text}, got {value}.")


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and is_dataclass(kind)


def _check_kind(field: _Field, value: Any) -> None:
    """Check fields that are text, mappings or configs themselves."""
    if str in field.kinds and not isinstance(value, str):
        raise ValueError(f"`{field.name}` must be a name, got {value!r}.")
    if field.takes_options:
        check_options(field.name, value)
    for kind in field.configs:
        if not isinstance(value, kind):
            raise ValueError(f"`{field.name}` must be a {kind.__name__}, got {value!r}.")


def check_options(name: str, value: Any) -> None:
    """Raise a ValueError unless `value` maps names of options to values."""
    if not isinstance(value, Mapping):
        raise ValueError(
            f"`{name}` must map names of options to values, such as {{'n_blocks': 8}}, "
            f"got {value!r}."
        )


Config = TypeVar("Config", bound=type)


def explain_unknown(cls: Config) -> Config:
    """A decorator for configs: the error for an unknown field says what was meant."""
    init = cls.__init__  # type: ignore[misc]

    @wraps(init)
    def checked(self: Any, *arguments: Any, **values: Any) -> None:
        known = [f.name for f in fields(cls)]
        for name in values:
            if name not in known:
                raise TypeError(f"{cls.__name__} has no field `{name}`. {_meant(cls, name)}")
        init(self, *arguments, **values)

    cls.__init__ = checked  # type: ignore[misc]
    return cls


def _meant(cls: type, name: str) -> str:
    """The place of a field that `cls` lacks: in one of its parts, or under a similar name."""
    for part, annotation in field_types(cls).items():
        kind: Any = base_type(annotation)
        if _is_config(kind) and name in field_types(kind):
            return f"Write {part}={kind.__name__}({name}=...)."
    known = [f.name for f in fields(cls)]
    if similar := get_close_matches(name, known, 1):
        return f"Did you mean `{similar[0]}`?"
    options = f" Write options={{'{name}': ...}} if it is an option of the mixer."
    return f"Available: {', '.join(known)}.{options if 'options' in known else ''}"


def _check_number(name: str, value: Any, kinds: tuple[Any, ...]) -> None:
    is_bool = isinstance(value, bool)
    if bool in kinds and not is_bool:
        raise ValueError(f"`{name}` must be true or false, got {value!r}.")
    if int in kinds and float not in kinds and (is_bool or not isinstance(value, int)):
        raise ValueError(f"`{name}` must be a whole number, got {value!r}.")
    if float in kinds and (is_bool or not isinstance(value, int | float) or math.isnan(value)):
        raise ValueError(f"`{name}` must be a number, got {value!r}.")


def differing_fields(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `values` that differ from `defaults`."""
    return {
        name: value
        for name, value in values.items()
        if name not in defaults or value != defaults[name]
    }


def check_known(cls: type, data: Any, owner: str) -> None:
    """`data`, read from JSON, is an object whose keys are fields of `cls`."""
    if not isinstance(data, Mapping):
        raise ValueError(f"The config of {owner} must be a JSON object, got {str(data)[:60]}.")
    known = [f.name for f in fields(cls)]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(
            f"Unknown fields in the config of {owner}: {', '.join(unknown)}. "
            f"Available: {', '.join(known)}."
        )
