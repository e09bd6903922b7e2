"""Command-line options derived from the fields of a config.

A derived option has the name, type and help text of its field. It is None unless the user gives
it, so that a preset can change only the options that were not given.
"""

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from statemix.config.fields import base_type, field_help, field_types

__all__ = ["flags", "given_options", "option_fields"]

_OptionField = tuple[str, Any, Any]


def option_fields(
    config: type,
    leave_out: Iterable[str] = (),
    names: Mapping[str, str] | None = None,
    preset: tuple[str, Any] | None = None,
    default: str | None = None,
) -> list[_OptionField]:
    """Options for the fields of `config`, as `dataclasses.make_dataclass` takes them.

    Args:
        leave_out: fields that get no option.
        names: options whose name differs from that of their field.
        preset: a preset's name and its config; the help texts show where its values differ.
        default: shown instead of the fields' defaults.
    """
    types = field_types(config)
    helps = field_help(config)
    renamed = names or {}
    found = []
    for f in fields(config):
        if f.name in leave_out:
            continue
        kind = base_type(types[f.name])
        help_text = " ".join(helps[f.name].split())
        argument = tyro.conf.arg(
            name=renamed.get(f.name),
            metavar=_metavar(kind),
            help=help_text,
            help_behavior_hint=_hint(f, preset) if default is None else f"(default: {default})",
        )
        if kind is bool:  # --flag and --no-flag have no value to show
            argument = tyro.conf.arg(name=renamed.get(f.name), help=help_text)
            found.append((f.name, Annotated[bool, argument], field(default=f.default)))
        else:
            found.append((f.name, Annotated[kind | None, argument], field(default=None)))
    return found


def _metavar(kind: Any) -> str:
    """How an option's value is shown: as for the field itself, which is never None."""
    choices = get_args(kind)
    if get_origin(kind) is Literal:
        return f"{{{','.join(choices)}}}"
    if get_origin(kind) is tuple:
        return f"[{_metavar(choices[0])} ...]"
    return "NUMBER" if float in choices else (choices[0] if choices else kind).__name__.upper()


def _hint(f: "Field[Any]", preset: tuple[str, Any] | None) -> str:
    default = f.default_factory() if f.default_factory is not MISSING else f.default
    text = f"default: {_shown(default)}"
    if preset is not None and getattr(preset[1], f.name) != default:
        text += f"; {preset[0]}: {_shown(getattr(preset[1], f.name))}"
    return f"({text})"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def given_options(command: Any, config: type) -> dict[str, Any]:
    """The options of `command` that the user set, by the names of the fields of `config`."""
    values = {f.name: getattr(command, f.name, None) for f in fields(config)}
    defaults = {f.name: f.default for f in fields(config)}
    return {
        name: value
        for name, value in values.items()
        if value is not None and not (isinstance(value, bool) and value == defaults[name])
    }


def flags(names: Iterable[str]) -> str:
    """The options called `names`, as a user types them."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)
