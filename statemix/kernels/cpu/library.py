"""The compiled CPU library, loaded with ctypes: found, or missing for a reason that can be told."""

import ctypes
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from statemix.kernels.switch import SWITCH, is_switched_on

ABI_VERSION = 5


@dataclass(frozen=True)
class Library:
    """A loaded library and the instruction set that this processor runs."""

    path: Path
    instruction_set: str
    threaded: bool
    max_size: int
    handle: ctypes.CDLL


@dataclass(frozen=True)
class Missing:
    """Why there is no library."""

    reason: str


@cache
def load() -> Library | Missing:
    """Load the library once for the process."""
    if not is_switched_on():
        return Missing(f"switched off by {SWITCH}=off")
    path = find()
    if path is None:
        return Missing(
            "this installation was built without a C++ compiler; reinstall with one to get the library"
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


def find() -> Path | None:
    """The library's file: beside this module, or where an editable installation puts it."""
    suffix = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
    relative = Path("statemix", "kernels", "cpu", f"libstatemix_cpu{suffix}")
    places = [Path(__file__).parents[3] / relative]
    with suppress(PackageNotFoundError):
        places.append(Path(str(distribution("statemix").locate_file(relative))))
    return next((place for place in places if place.is_file()), None)
