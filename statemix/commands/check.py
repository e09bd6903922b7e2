"""Refusing what cannot be run before anything is imported or measured."""

import os

MANY = 1024  # threads or processes, more than any machine has cores for


def check_positive(option: str, value: int | tuple[int, ...]) -> None:
    """A number given on the command line, or each of several, is at least one."""
    for each in value if isinstance(value, tuple) else (value,):
        if each < 1:
            raise SystemExit(
                f"statemix: --{option.replace('_', '-')} must be at least 1, got {each}."
            )
        if option in ("threads", "workers") and each > MANY:
            raise SystemExit(
                f"statemix: --{option} must be at most {MANY}, got {each}; this machine has {os.cpu_count()} cores."
            )
    if value == ():
        raise SystemExit(f"statemix: --{option.replace('_', '-')} needs at least one number.")
