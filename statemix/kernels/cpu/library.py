"""The compiled CPU library, loaded with ctypes, or the reason why it is missing."""

import ctypes
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from statemix.kernels.switch import SWITCH, is_switched_on

__all__ = ["ISA", "Library", "Missing", "load"]

ABI_VERSION = 9
ISA = "STATEMIX_ISA"  # generic, avx2 or avx512: an instruction set other than the best one


@dataclass(frozen=True)
class Library:
    """A loaded library, and the instruction set and the threads that it uses on this machine."""

    path: Path
    instruction_set: str
    threads: str
    max_size: int
    handle: ctypes.CDLL


@dataclass(frozen=True)
class Missing:
    """The reason why there is no library, and whether the user switched it off."""

    reason: str
    switched_off: bool = False


@cache
def load() -> Library | Missing:
    """Load the library once per process."""
    if not is_switched_on():
        return Missing(f"switched off by {SWITCH}=off", switched_off=True)
    path = _find()
    if path is None:
        return Missing(_why_absent())
    try:
        handle = ctypes.CDLL(str(path))
        version = handle.statemix_abi_version()
    except (OSError, AttributeError) as error:
        return Missing(f"{path.name} does not load ({error}); reinstall statemix")
    if version != ABI_VERSION:
        return Missing(
            f"{path.name} has ABI version {version}, expected {ABI_VERSION}; reinstall statemix"
        )
    handle.statemix_instruction_set.restype = ctypes.c_char_p
    instruction_set = handle.statemix_instruction_set().decode()
    _check_wish(instruction_set)
    return Library(
        path, instruction_set, _share_threads(handle), handle.statemix_max_size(), handle
    )


def _check_wish(instruction_set: str) -> None:
    """The library follows STATEMIX_ISA if this processor has that instruction set."""
    wish = os.environ.get(ISA)
    if wish and wish != instruction_set:
        raise ValueError(
            f"The environment variable {ISA} must be an instruction set of this processor and of "
            f"the library (generic, avx2 or avx512), got {wish!r}. "
            f"Without it, the library uses the best one; with it, {instruction_set}."
        )


def _share_threads(handle: ctypes.CDLL) -> str:
    """Let the library work on the threads of torch's OpenMP runtime, if torch loaded one."""
    entry: Any = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    handle.statemix_use_openmp(ctypes.cast(entry, ctypes.c_void_p))
    return "its own threads" if entry is None else "torch's OpenMP threads"


def _why_absent() -> str:
    """The reason why this installation has no library file."""
    if sys.platform == "win32":
        return "there is no compiled library for Windows"
    return (
        "this installation was built without a C++ compiler; install GCC or Clang, then reinstall "
        "with: pip install --force-reinstall --no-deps --no-binary statemix statemix, or in a "
        "clone: pip install ."
    )


def _find() -> Path | None:
    """The library file, next to this module or in the files of an editable installation."""
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    relative = Path("statemix", "kernels", "cpu", f"libstatemix_cpu{suffix}")
    places = [Path(__file__).parents[3] / relative]
    with suppress(PackageNotFoundError):
        places.append(Path(str(distribution("statemix").locate_file(relative))))
    return next((place for place in places if place.is_file()), None)
