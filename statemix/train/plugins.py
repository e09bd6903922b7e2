"""Users' own files: mixers and tasks that they register, experiments that they write."""

import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path, once for the process."""
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path}.")
    name = f"statemix_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise ValueError(f"{path}, line {error.lineno}: {error.msg}.") from error
    except (TypeError, ImportError) as error:  # a mixer that lacks something, a package that is not there
        del sys.modules[name]
        raise ValueError(f"{path}, line {last_line(error, path)}: {error}") from error
    except BaseException:
        del sys.modules[name]
        raise
    return module


def last_line(error: BaseException, path: Path) -> int:
    """The last line of `path` that was run before the error."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename) == path]
    return lines[-1] or 0 if lines else 0


def load_files(paths: Iterable[Path]) -> None:
    """Let each file register what it has."""
    for path in paths:
        load_file(path)
