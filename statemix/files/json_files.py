"""JSON files: parsed with limits, and turned into dataclasses whose fields are checked.

Numbers beyond 64 bits, values nested more than 64 deep, and text that cannot be printed are errors
here, so that no code behind this module meets them.
"""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from statemix.config.build import build, shown
from statemix.files.regular import check_regular

__all__ = [
    "Damaged",
    "parse_json",
    "parse_object",
    "read_as",
    "read_json",
    "read_object",
    "read_rows",
]

_DEEPEST = 64
_LARGEST = 1 << 64
T = TypeVar("T")


class Damaged(ValueError):
    """A file that does not contain what it should."""


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; raise a ValueError that says what is wrong with it."""
    try:
        value = json.loads(text)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start})") from error
    except RecursionError as error:
        raise ValueError(f"its values are nested more than {_DEEPEST} deep") from error
    _check_values(value)
    return value


def _check_values(value: Any) -> None:
    """Raise a ValueError for values that are too deep, too large, or not text."""
    level = [value]
    for _ in range(_DEEPEST):
        below: list[Any] = []
        for each in level:
            if isinstance(each, dict):
                below += each.keys()
                below += each.values()
            elif isinstance(each, list):
                below += each
            elif isinstance(each, str):
                _check_text(each)
            elif isinstance(each, int) and abs(each) > _LARGEST:
                raise ValueError(f"it has the number {shown(each)}, which exceeds 64 bits")
        if not below:
            return
        level = below
    raise ValueError(f"its values are nested more than {_DEEPEST} deep")


def _check_text(text: str) -> None:
    """Raise a ValueError if `text` cannot be written as UTF-8, or has a zero byte."""
    if text.isascii():
        if "\0" in text:
            raise ValueError("its text has a zero byte")
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"its text is not Unicode (character {error.start})") from error


def parse_object(text: str | bytes) -> dict[str, Any]:
    """The JSON object that `text` describes."""
    value = parse_json(text)
    if not isinstance(value, dict):
        raise ValueError(f"it must be a JSON object, got {shown(value)}")
    return value


def read_json(path: Path, advice: str) -> Any:
    """The value in the JSON file `path`; the error for a damaged file ends with `advice`."""
    check_regular(path)
    data = path.read_bytes()
    try:
        return parse_json(data)
    except ValueError as error:
        raise damage(path, error, advice) from error


def read_object(path: Path, advice: str) -> dict[str, Any]:
    """The JSON object in the file `path`."""
    value = read_json(path, advice)
    if not isinstance(value, dict):
        raise damage(path, f"it must be a JSON object, got {shown(value)}", advice)
    return value


def read_as(kind: type[T], path: Path, advice: str) -> T:
    """The dataclass `kind` that the JSON file `path` describes."""
    value = read_object(path, advice)
    try:
        return build(kind, value)
    except ValueError as error:
        raise damage(path, error, advice) from error


def read_rows(kind: type[T], path: Path, advice: str) -> list[T]:
    """The dataclasses `kind` in the lines of a JSON lines file; other fields are ignored."""
    check_regular(path)
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    rows = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            value = parse_object(line)
            rows.append(build(kind, {name: value[name] for name in names if name in value}))
        except ValueError as error:
            raise damage(path, f"line {number}: {error}", advice) from error
    return rows


def damage(path: Path, why: object, advice: str) -> Damaged:
    """The error for a damaged file."""
    return Damaged(f"{path} is damaged: {str(why).removesuffix('.')}. {advice}")
