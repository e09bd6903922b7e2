"""Atomic writes: a file or directory is renamed when it is complete.

Until then its name ends in `.part`, and its writer holds a lock on it. The lock ends with the
process, however it ends, so the next writer recognises what killed processes left behind.
"""

import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

import numpy as np

__all__ = [
    "naming",
    "remove_stale",
    "write_array",
    "write_atomically",
    "writing_directory",
]

_PART = ".part"
_OLD = ".old"
_NAMED = re.compile(r"\.(\d+)(-[0-9a-f]+)?\.(part|old)|step-\d+\.part")  # the end of a name


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the file's name to an error of the operating system that lacks it, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: Path, data: bytes) -> None:
    """Write `data` to `path`, so that an interruption leaves the old file or the new one."""
    remove_stale(path.parent, path.name)
    part = path.with_name(f"{path.name}.{os.getpid()}{_PART}")
    try:
        with naming(path), part.open("wb") as file:
            _hold(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_array(path: Path, array: np.ndarray) -> None:
    """Write the numbers of `array`; `tofile` does not report a full disk for small arrays."""
    with naming(path), path.open("wb") as file:
        file.write(np.ascontiguousarray(array).data)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def writing_directory(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a directory that becomes `target` on leaving the context, or disappears on an error.

    A `target` that exists is an error, unless `replace` is True. What killed writers of `target`
    left behind is removed.
    """
    remove_stale(target.parent, target.name)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}-{token_hex(4)}{_PART}")
    part.mkdir()
    held = os.open(part, os.O_RDONLY)
    _hold(held)
    try:
        yield part
        if replace:
            _replace(part, target)
        else:
            part.rename(target)
    finally:
        os.close(held)
        shutil.rmtree(part, ignore_errors=True)


def _replace(part: Path, target: Path) -> None:
    """Rename `part` to `target`, then remove the previous contents; an error leaves them."""
    old = target.with_name(f"{target.name}.{os.getpid()}{_OLD}")
    existed = target.exists()
    if existed:
        target.replace(old)
    try:
        part.replace(target)
    except OSError:
        if existed:
            old.replace(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def remove_stale(directory: Path, name: str = "") -> None:
    """Remove the files and directories that killed writers of `name` left in `directory`.

    An empty name means all writers. Parts that a live process holds are left alone, as are the
    previous version of a directory whose new one is missing, and files of other programs.
    """
    if not directory.is_dir():
        return
    for path in directory.iterdir():
        if path.is_symlink() or not path.name.startswith(f"{name}." if name else ""):
            continue
        named = _NAMED.search(path.name)
        if named is None or named.end() < len(path.name) or _is_running(named[1]):
            continue
        replaced = path.name.removesuffix(_OLD).rpartition(".")[0]
        is_old = path.suffix == _OLD and (directory / replaced).exists() and bool(replaced)
        if (path.suffix == _PART and not _is_held(path)) or is_old:
            _remove(path)


def _is_running(process: str | None) -> bool:
    """True if a process of this number runs here: it may be about to lock what it has created."""
    try:
        os.kill(int(process or 0), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    with suppress(OSError):  # a killed process that its parent has not waited for
        return ") Z " not in Path(f"/proc/{process}/stat").read_text()
    return bool(process)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _hold(descriptor: int) -> None:
    """Lock an open file until it is closed; file systems without locks are tolerated."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_held(path: Path) -> bool:
    """True if a process holds the lock of `path`, or if that cannot be known."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False
