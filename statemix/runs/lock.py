"""Locks that end with the process that holds them.

A lock is an flock on an open file. The operating system releases it when the process ends, however
it ends. Programs that the process starts do not inherit it: Python opens files close-on-exec.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from statemix.files.writing import remove_stale
from statemix.runs.layout import LOCK

__all__ = ["Busy", "entered", "held", "lock"]


class Busy(ValueError):
    """Another process holds the lock."""


def lock(file: IO[Any], *, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file until it is closed; raise `Busy` if it is locked and `wait` is False.

    On a file system without locks this does nothing.
    """
    how = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(file, how)
    except BlockingIOError as error:
        raise Busy(f"Another process holds {file.name}. Wait until it ends.") from error
    except OSError:
        return


@contextmanager
def entered(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a run's directory, so that only one process at a time writes to it.

    What killed writers left in the directory is removed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a") as file:
        try:
            lock(file, wait=wait)
        except Busy as error:
            raise Busy(
                f"Another process is training the run in {directory}. "
                "Wait until it ends, or choose another directory."
            ) from error
        remove_stale(directory)
        yield


@contextmanager
def held(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock file that is removed on release; a killed process leaves it behind, unlocked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("a") as file:
            lock(file, wait=wait)
            if _is_at(file, path):  # otherwise the last holder removed it after we had opened it
                try:
                    yield
                finally:
                    path.unlink(missing_ok=True)
                return


def _is_at(file: IO[Any], path: Path) -> bool:
    """True if `path` still names the open file."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    return False
