"""Python files of the user: mixers and tasks that they register, experiments that they define."""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["hash_sources", "load_file", "load_files"]


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path, once per process; it may import its neighbours."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    place = path.resolve()
    name = f"statemix_file_{hashlib.sha256(str(place).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, place)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _importing_from(place.parent):
            spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        # The error may be in a file that this one imports.
        where = path if error.filename in (None, str(place)) else error.filename
        raise ValueError(f"{where}, line {error.lineno}: {error.msg}.") from error
    except (TypeError, ImportError) as error:  # an incomplete mixer, a missing package
        del sys.modules[name]
        raise ValueError(f"{path}, line {_last_line(error, place)}: {error}") from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importing_from(directory: Path) -> Iterator[None]:
    """Allow imports from `directory` inside the context, as for a script that is run there."""
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        with suppress(ValueError):  # the file may have removed it itself
            sys.path.remove(str(directory))


def _last_line(error: BaseException, path: Path) -> int:
    """The last line of `path` that ran before the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve() == path.resolve()
    ]
    return lines[-1] or 0 if lines else 0


def hash_sources(makers: Iterable[Callable[..., Any]]) -> dict[str, str]:
    """Hashes of the user's files that define `makers`, by file name.

    Files of the same name are distinguished by their directories.
    """
    modules = {
        maker.__module__ for maker in makers if maker.__module__.partition(".")[0] != "statemix"
    }
    found = (getattr(sys.modules.get(module), "__file__", None) for module in modules)
    files = sorted({Path(file).resolve() for file in found if file is not None})
    names = [file.name for file in files]
    return {
        file.name
        if names.count(file.name) == 1
        else f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }


def load_files(paths: Iterable[Path]) -> None:
    """Import each file, which registers its mixers and tasks."""
    for path in paths:
        load_file(path)
