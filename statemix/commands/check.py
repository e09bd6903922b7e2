"""Checks of numbers on the command line, before anything is imported or run."""

import os

__all__ = ["check_positive"]

_LARGEST = 1 << 48
_MANY = 1024  # threads or processes, more than any machine has cores


def check_positive(option: str, value: int | tuple[int, ...]) -> None:
    """Exit with an error unless the number, or each of several, is at least 1."""
    flag = f"--{option.replace('_', '-')}"
    for each in value if isinstance(value, tuple) else (value,):
        if each < 1:
            raise SystemExit(f"statemix: {flag} must be at least 1, got {each}.")
        if each > _LARGEST:
            raise SystemExit(f"statemix: {flag} must be at most {_LARGEST}, got {each}.")
        if option in ("threads", "workers") and each > _MANY:
            raise SystemExit(
                f"statemix: {flag} must be at most {_MANY}, got {each}; "
                f"this machine has {os.cpu_count()} cores."
            )
    if value == ():
        raise SystemExit(f"statemix: {flag} needs at least one number.")
