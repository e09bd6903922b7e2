"""Only regular files are read: a pipe blocks its reader, and a device never ends."""

import stat
from pathlib import Path

__all__ = ["check_regular"]


def check_regular(path: Path) -> None:
    """Raise an error unless `path` names a regular file; a missing one is an OSError."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return
    kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    raise ValueError(f"{path} must be a regular file, but it is {kind}.")
