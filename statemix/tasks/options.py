"""Checks of task options, with errors that name the task and the option."""

from collections.abc import Container, Iterable
from typing import Protocol

__all__ = ["check_choice", "check_least"]


class _Choices(Container[str], Iterable[str], Protocol):
    """A table or a tuple of names."""


def check_least(task: str, option: str, value: int, least: int) -> None:
    """Raise an error if a number is below `least`."""
    if value < least:
        raise ValueError(
            f"The option `{option}` of the task {task!r} must be at least {least}, got {value}."
        )


def check_choice(task: str, option: str, value: str, known: _Choices) -> None:
    """Raise an error unless `value` is one of the `known` names."""
    if value not in known:
        raise ValueError(
            f"The option `{option}` of the task {task!r} must be one of {', '.join(known)}, "
            f"got {value!r}."
        )
