"""Write the reference of the command line from its parser."""

import io
import os
import re
import typing
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import tyro

from statemix.cli import _Command

__all__ = ["commands", "write"]

WIDTH = "100"


def write(path: Path) -> None:
    """Write a page with the help text of every command."""
    os.environ["COLUMNS"] = WIDTH
    parts = ["# The command line", "`statemix COMMAND --help` prints the same."]
    for words in commands(_Command):
        title = "#" * (len(words) + 1) + f" statemix {' '.join(words)}"
        parts.append(f"{title}\n\n```text\n{_help(words)}\n```")
    path.write_text("\n\n".join(parts) + "\n")


def commands(union: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of every command, and of its subcommands."""
    for choice in typing.get_args(union):
        kind, *notes = typing.get_args(choice)
        words = (*before, next(note.name for note in notes if hasattr(note, "name")))
        yield words
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            inner = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
            if _is_choice(inner):
                yield from commands(inner, words)


def _is_choice(hint: Any) -> bool:
    """True if a field is a choice between subcommands."""
    parts = typing.get_args(hint)
    return bool(parts) and all(hasattr(part, "__metadata__") for part in parts)


def _help(words: tuple[str, ...]) -> str:
    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        tyro.cli(_Command, prog="statemix", args=[*words, "--help"])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    return re.sub(r" +$", "", plain, flags=re.MULTILINE).strip()
