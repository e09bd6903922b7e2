"""Refusing what cannot be run before anything is imported or measured."""


def check_positive(option: str, value: int | tuple[int, ...]) -> None:
    """A number given on the command line, or each of several, is at least one."""
    for each in value if isinstance(value, tuple) else (value,):
        if each < 1:
            raise SystemExit(f"statemix: --{option.replace('_', '-')} must be at least 1, got {each}.")
    if value == ():
        raise SystemExit(f"statemix: --{option.replace('_', '-')} needs at least one number.")
