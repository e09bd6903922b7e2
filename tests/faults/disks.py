"""Bad disks: full, read-only and missing ones, denied permissions, symbolic links.

Each case writes to a separate small file system, in a mount namespace that ends with the case. A
command that fails must say so in one line. When the obstacle is gone, the same command ends with
the same bits as if there had been none.
"""

import ctypes
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import kills, world
from faults.kills import COMMANDS, Command
from faults.runner import Kind, Outcome
from faults.world import fork, wait_for

__all__ = ["KIND"]

_NEWNS, _NEWUSER = 0x20000, 0x10000000
_PRIVATE, _REMOUNT, _READ_ONLY = (1 << 14) | (1 << 18), 32, 1
_NOBODY = 65534
_TESTED = [command for command in COMMANDS if command.name != "certify"]
_libc = ctypes.CDLL(None, use_errno=True)


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str = "") -> None:
    """The system call."""
    words = [source.encode(), str(target).encode(), None if kind is None else kind.encode()]
    if _libc.mount(*words, flags, options.encode() or None):
        raise OSError(ctypes.get_errno(), "mount", str(target))


def _own_mounts() -> bool:
    """Give this process private mounts; False if the system allows none."""
    user = os.getuid()
    if _libc.unshare(_NEWNS | (0 if user == 0 else _NEWUSER)):
        return False
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    _mount("none", Path("/"), None, _PRIVATE)
    return True


def _full(rng: random.Random, disk: Path, out: Path) -> tuple[str, Callable[[], None]]:
    """A disk of a few blocks; afterwards a larger one."""
    blocks = rng.choice((1, 2, 3, 5, 8, 13, 21, 34))
    _mount("none", disk, "tmpfs", _REMOUNT, f"size={blocks * 4}k")
    return f"full disk of {blocks * 4} kB", lambda: _enlarge(disk)


def _enlarge(disk: Path) -> None:
    _mount("none", disk, "tmpfs", _REMOUNT, "size=64m")


def _read_only(rng: random.Random, disk: Path, out: Path) -> tuple[str, Callable[[], None]]:
    _mount("none", disk, "tmpfs", _REMOUNT | _READ_ONLY, "size=64m")
    return "read-only disk", lambda: _enlarge(disk)


def _missing(rng: random.Random, disk: Path, out: Path) -> tuple[str, Callable[[], None]]:
    """A file where the directory should be."""
    shutil.rmtree(out)
    out.write_text("a file")

    def repair() -> None:
        out.unlink()
        out.mkdir()

    return "a file in place of the directory", repair


def _denied(rng: random.Random, disk: Path, out: Path) -> tuple[str, Callable[[], None]]:
    """Another user, without permission to write."""
    mode = rng.choice((0o555, 0o500, 0o000))
    out.chmod(mode)
    return f"another user, mode {mode:o}", lambda: out.chmod(0o755)


def _dangling(rng: random.Random, disk: Path, out: Path) -> tuple[str, Callable[[], None]]:
    """A symbolic link that leads nowhere, or to itself."""
    shutil.rmtree(out)
    target = rng.choice(("nowhere/at/all", out.name))
    out.symlink_to(target)

    def repair() -> None:
        out.unlink()
        out.mkdir()

    return f"a link to {target}", repair


def _linked(rng: random.Random, disk: Path, out: Path) -> tuple[str, Callable[[], None]]:
    """A symbolic link to a directory, which is followed."""
    shutil.rmtree(out)
    (disk / "elsewhere").mkdir()
    out.symlink_to("elsewhere")
    return "a link to a directory", lambda: None


_OBSTACLES = (*(_full,) * 5, _read_only, _missing, _denied, _denied, _dangling, _linked)


def _case(rng: random.Random, folder: Path) -> Outcome:
    """A case in a separate process, for its mounts."""
    report = folder / f"report-{os.getpid()}"
    report.unlink(missing_ok=True)
    command, obstacle = rng.choice(_TESTED), rng.choice(_OBSTACLES)

    def work() -> None:
        report.write_text(json.dumps(_tried(rng, folder, command, obstacle)))

    code = wait_for(fork(work, folder / "case.log"))
    if code or not report.exists():
        return Outcome("error in the suite", (folder / "case.log").read_text())
    label, wrong = json.loads(report.read_text())
    return Outcome(label, wrong)


def _tried(
    rng: random.Random, folder: Path, command: Command, obstacle: Callable[..., Any]
) -> tuple[str, str]:
    """Run a command into an obstacle, remove it, and run the command again."""
    disk = folder / f"disk-{os.getpid()}"
    disk.mkdir()
    if not _own_mounts():
        return "no mounts on this system", ""
    _mount("none", disk, "tmpfs", 0, "size=64m,mode=755")
    out = disk / "out"
    out.mkdir()
    what, repair = obstacle(rng, disk, out)
    user = _NOBODY if obstacle is _denied and os.getuid() == 0 else None
    code, said = _run(command, folder, out, user)
    story = f"statemix {command.words}: {what}"
    if "Traceback" in said or code < 0:
        return "traceback", f"{story}\n{said[-3000:]}"
    repair()
    again, last = _run(command, folder, out, None)
    if again and not (code == 0 and "exists" in last):
        return "not repaired", f"{story}; afterwards: {last[-2000:]}"
    expected = json.loads((folder / "known.json").read_text())[command.name][0]
    found = json.loads(json.dumps(kills.results_of(command, out)))
    if wrong := kills.differences(expected, found):
        return "lost", f"{story}; afterwards {wrong}"
    if left := world.remains(out):
        return "left behind", f"{story}; afterwards {left}"
    return ("refused" if code else "accepted") + ", then the same bits", ""


def _run(command: Command, folder: Path, out: Path, user: int | None) -> tuple[int, str]:
    """The exit code of a command and what it says."""
    log = folder / f"log-{os.getpid()}"
    code = wait_for(kills.run(command, folder, out, log=log, user=user))
    return code, log.read_text()


KIND = Kind("disks", "bad disks", 8, _case, kills.prepare, seconds=120)
