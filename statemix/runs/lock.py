"""A run's directory, which one process at a time may write to."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Busy(ValueError):
    """Another process is at this run."""


@contextmanager
def entered(directory: Path) -> Iterator[None]:
    """Hold the lock of a run's directory; the system lets go of it whenever the process ends.

    On a file system that knows no locks there is none to hold.
    """
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Busy(
                f"Another process is at the run {directory}. Wait until it ends, or choose another directory."
            ) from error
        except OSError:
            pass
        yield
