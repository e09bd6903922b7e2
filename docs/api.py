"""Write the reference of functions and classes from their docstrings.

A page for each public package lists every name of its `__all__`: the signature, the shapes of
tensors, and the docstring, whose indented equations are blocks of code in Markdown too.
"""

import dataclasses
import enum
import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any

import statemix
from statemix.config.fields import base_type, field_help, field_types

__all__ = ["methods", "modules", "page", "unshaped", "write"]

PRIVATE = ("kernels", "commands", "report", "demo", "bench", "cli", "__main__", "paper")
INDEX = """# Functions and classes

Read off the docstrings. The letters of shapes are those of [the types](types.md).

```{{toctree}}
:maxdepth: 1

{names}
```
"""


def modules() -> list[ModuleType]:
    """The public packages, and modules without a package above them, that export something."""
    found = [statemix]
    names = ["ops", *sorted(m.name for m in pkgutil.iter_modules(statemix.__path__))]
    for name in dict.fromkeys(names):
        if name not in PRIVATE:
            found += _with_packages(importlib.import_module(f"statemix.{name}"))
    return [module for module in found if getattr(module, "__all__", None)]


def _with_packages(module: ModuleType) -> Iterator[ModuleType]:
    """A module, and the packages inside it; `ops.context` is a namespace of functions too."""
    yield module
    for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
        name = f"{module.__name__}.{inner.name}"
        if name == "statemix.ops.context" or (inner.ispkg and inner.name != "dispatch"):
            yield from _with_packages(importlib.import_module(name))


def page(module: ModuleType) -> str:
    """A page of reference: the module's docstring, and its public names."""
    parts = [f"# {module.__name__}", _markdown(inspect.getdoc(module) or "")]
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.ismodule(thing):
            continue
        home = _home(thing, module)
        if home != module.__name__:
            parts.append(f"- [`{name}`]({_file(home)}#{name.lower()})")
        else:
            parts.append(_entry(name, thing))
    return "\n\n".join(part for part in parts if part) + "\n"


def _home(thing: Any, module: ModuleType) -> str:
    """The most specific public package that exports `thing`."""
    name = getattr(thing, "__name__", None)
    where = getattr(thing, "__module__", module.__name__) or module.__name__
    homes = [m.__name__ for m in modules() if name in m.__all__ and where.startswith(m.__name__)]
    return max(homes, key=len, default=module.__name__)


def _file(module: str) -> str:
    return f"{module.removeprefix('statemix.')}.md"


def _entry(name: str, thing: Any) -> str:
    """One public name."""
    if inspect.isclass(thing):
        body = _class(thing)
    elif callable(thing):
        body = [_signature(name, thing), _markdown(inspect.getdoc(thing) or ""), _shapes(thing)]
    else:
        body = [_constant(thing)]
    text = "\n\n".join(part for part in body if part)
    return f"## {name}\n\n{text}"


def _class(thing: type) -> list[str]:
    """Signature, docstring, fields and public methods of a class."""
    parts = [_signature(thing.__name__, thing), _markdown(inspect.getdoc(thing) or "")]
    if dataclasses.is_dataclass(thing):
        parts.append(_fields(thing))
    elif not issubclass(thing, enum.Enum):
        with suppress(ValueError, TypeError):
            parts.append(_shapes(thing.__init__))
    for name, method in methods(thing).items():
        text = [_signature(name, method), _markdown(inspect.getdoc(method) or "")]
        parts += [f"### .{name}()", *text, _shapes(method)]
    for name, value in vars(thing).items():
        if isinstance(value, property) and not name.startswith("_"):
            parts += [f"### .{name}", _markdown(inspect.getdoc(value) or "")]
    return parts


def methods(thing: type) -> dict[str, Callable[..., Any]]:
    """The documented public methods that a class has from this package."""
    found = {}
    for base in reversed(thing.__mro__):
        if base.__module__.startswith("statemix"):
            for name, value in vars(base).items():
                inner = getattr(value, "__func__", value)
                if inspect.isfunction(inner) and not name.startswith("_") and inner.__doc__:
                    found[name] = inner
    return dict(sorted(found.items(), key=lambda item: item[0] != "forward"))


def unshaped(thing: Callable[..., Any]) -> list[str]:
    """Arguments, fields or results that are tensors without a shape."""
    try:
        hints = inspect.get_annotations(thing)
    except (TypeError, NameError):
        return []
    return [name for name, hint in hints.items() if _is_bare(hint)]


def _is_bare(hint: Any) -> bool:
    """True for a tensor without a shape, alone, in a union or in a tuple."""
    if typing.get_origin(hint) in (typing.Union, UnionType, tuple):
        return any(_is_bare(part) for part in typing.get_args(hint))
    return isinstance(hint, type) and hint.__name__ == "Tensor" and not hasattr(hint, "dims")


def _fields(thing: type) -> str:
    """The fields of a dataclass as a table, with their help texts."""
    helps: Mapping[str, str] = {}
    with suppress(Exception):
        helps = field_help(thing)
    types = field_types(thing) if helps else {}
    rows = []
    for f in dataclasses.fields(thing):
        default = _default(f)
        kind = _type(base_type(types[f.name]) if f.name in types else f.type)
        rows.append(f"| `{f.name}` | {kind} | {default} | {_cell(helps.get(f.name, ''))} |")
    return "\n".join(["| field | type | default | |", "|---|---|---|---|", *rows])


def _default(f: "dataclasses.Field[Any]") -> str:
    if f.default is not dataclasses.MISSING:
        return f"`{f.default!r}`"
    if f.default_factory is not dataclasses.MISSING:
        return f"`{f.default_factory()!r}`".replace("|", "\\|")
    return "required"


def _signature(name: str, thing: Callable[..., Any]) -> str:
    """A call with the names and defaults of its arguments."""
    try:
        parameters = list(inspect.signature(thing).parameters.values())
    except (ValueError, TypeError):
        return ""
    bare = [
        p.replace(annotation=p.empty, default=_plain(p.default))
        for p in parameters
        if p.name not in ("self", "cls")
    ]
    call = f"{name}{inspect.Signature(bare)}"
    if len(call) > 96:
        call = call[: len(name) + 1] + "\n    " + _wrapped(call[len(name) + 1 : -1]) + "\n)"
    return f"```python\n{call}\n```"


def _wrapped(arguments: str) -> str:
    return re.sub(r", (?=[*\w]+[,=]|[*\w]+$)", ",\n    ", arguments) + ","


class _Elided:
    """A default that cannot be written down."""

    def __repr__(self) -> str:
        return "..."


def _plain(value: Any) -> Any:
    """A default whose representation has no address of memory."""
    return _Elided() if " at 0x" in repr(value) or "<factory>" in repr(value) else value


def _shapes_of(thing: Callable[..., Any]) -> dict[str, str]:
    """The type, with the shape of a tensor, of each argument and of the result."""
    try:
        hints = inspect.get_annotations(thing)
    except (TypeError, NameError):
        return {}
    return {name: _type(hint) for name, hint in hints.items() if hint not in (None, "None")}


def _shapes(thing: Callable[..., Any]) -> str:
    """A table of arguments and result."""
    rows = [f"| `{name}` | {kind} |" for name, kind in _shapes_of(thing).items()]
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else ""


def _type(hint: Any) -> str:
    """A type as a reader writes it: `float (B, T, n, m)` for a tensor."""
    if hasattr(hint, "dims") and hasattr(hint, "dtypes"):
        kind = hint.__name__.split("[")[0].lower()
        sizes = ", ".join(str(hint.dim_str).split())
        return f"{kind} tensor ({sizes.replace('_plus_1', ' + 1').replace('+1', ' + 1')})"
    origin = typing.get_origin(hint)
    parts = typing.get_args(hint)
    if origin is typing.Annotated:
        text = _type(parts[0])
    elif origin in (typing.Union, UnionType):
        text = " or ".join(map(_type, parts))
    elif origin is typing.Literal:
        text = ", ".join(f"`{value!r}`" for value in parts)
    elif parts:
        inner = ", ".join(_type(part) for part in parts if part is not Ellipsis)
        text = f"{getattr(origin, '__name__', origin)} of {inner}"
    elif isinstance(hint, list):  # the arguments of a callable
        text = ", ".join(map(_type, hint))
    else:
        text = "None" if hint in (type(None), None) else getattr(hint, "__name__", str(hint))
    return _cell(text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _constant(thing: Any) -> str:
    """A table of names, or a value."""
    if isinstance(thing, Mapping):
        return "A table: " + ", ".join(f"`{key}`" for key in sorted(thing)) + "."
    return f"`{thing!r}`"


def _markdown(doc: str) -> str:
    """A docstring as Markdown: sections become lists, equations stay blocks of code."""
    doc = re.sub(r"^(Args|Returns|Raises|Attributes):\n", r"**\1**\n\n", doc, flags=re.MULTILINE)
    lines, inside = [], False
    for line in doc.splitlines():
        inside = line.startswith("**") or (inside and (not line or line.startswith("    ")))
        item = re.match(r"    (\w[\w, ]*): (.*)", line) if inside else None
        if item:
            lines.append(f"- `{item[1]}`: {item[2]}")
        else:
            lines.append(line[4:] if inside and line.startswith("    ") else line)
    return "\n".join(lines)


def write(directory: Path) -> None:
    """Write a page for each package, and an index that lists them."""
    directory.mkdir(parents=True, exist_ok=True)
    found = modules()
    for module in found:
        (directory / _file(module.__name__)).write_text(page(module))
    names = "\n".join(_file(module.__name__).removesuffix(".md") for module in found)
    (directory / "index.md").write_text(INDEX.format(names=names))
