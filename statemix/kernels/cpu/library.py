"""The compiled CPU library, loaded with ctypes, or the reason why it is missing."""

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from statemix.kernels.switch import SWITCH, is_switched_on

__all__ = ["Library", "Missing", "load"]

ABI_VERSION = 6


@dataclass(frozen=True)
class Library:
    """A loaded library, and the instruction set that it uses on this processor."""

    path: Path
    instruction_set: str
    threaded: bool
    max_size: int
    handle: ctypes.CDLL


@dataclass(frozen=True)
class Missing:
    """The reason why there is no library."""

    reason: str


@cache
def load() -> Library | Missing:
    """Load the library once per process."""
    if not is_switched_on():
        return Missing(f"switched off by {SWITCH}=off")
    path = _find()
    if path is None:
        return Missing(
            "this installation was built without a C++ compiler; "
            "reinstall with a compiler to build the library"
        )
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
    return Library(
        path,
        instruction_set,
        bool(handle.statemix_has_threads()),
        handle.statemix_max_size(),
        handle,
    )


def _find() -> Path | None:
    """The library file, next to this module or in the files of an editable installation."""
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    relative = Path("statemix", "kernels", "cpu", f"libstatemix_cpu{suffix}")
    places = [Path(__file__).parents[3] / relative]
    with suppress(PackageNotFoundError):
        places.append(Path(str(distribution("statemix").locate_file(relative))))
    return next((place for place in places if place.is_file()), None)
