"""What has been run: one line of JSON a run, appended and never changed.

A line is written by one call under a lock, so processes may share a ledger.  A line that cannot be read, cut off by a full disk perhaps, is
reported and skipped, and the run it stood for is done again.
"""

import fcntl
import functools
import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from statemix import __version__
from statemix.train import RunConfig
from statemix.train.sources import sources_of


@dataclass(frozen=True)
class Entry:
    """One run: its config, its result or the reason why it has none, and hashes of users' files that it was made with."""

    id: str
    status: str
    config: dict[str, Any]
    result: dict[str, Any] | None
    reason: str | None
    commit: str
    machine: str
    version: str = __version__
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ledger:
    """The file, and what is in it."""

    path: Path

    def read(self) -> tuple[list[Entry], list[str]]:
        """All entries, and a sentence for each line that is none."""
        entries, complaints = [], []
        if not self.path.exists():
            return [], []
        for number, line in enumerate(self.path.read_text(errors="replace").splitlines(), 1):
            if not line.strip():
                continue
            try:
                entries.append(Entry(**json.loads(line)))
            except (json.JSONDecodeError, TypeError) as error:
                complaints.append(
                    f"{self.path}, line {number} is damaged and was skipped: {error}."
                )
        return entries, complaints

    def done(self) -> set[str]:
        """Ids of the runs that have a result."""
        return {entry.id for entry in self.read()[0] if entry.status == "done"}

    def outdated(self, configs: list[RunConfig]) -> list[str]:
        """Users' files that are not what they were when runs of `configs` were made."""
        files = {entry.id: entry.files for entry in self.read()[0] if entry.status == "done"}
        now = {config.id: sources_of(config) for config in configs if files.get(config.id)}
        return sorted(
            {
                name
                for id_, own in now.items()
                for name in files[id_]
                if files[id_][name] != own.get(name)
            }
        )

    def check_writable(self) -> None:
        """Fail before anything is run, not after."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.open("ab").close()

    def append(self, entry: Entry) -> None:
        """Add a line, whole; begin a new one if the last was cut off."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            end = file.seek(0, os.SEEK_END)
            file.seek(max(0, end - 1))
            broken = end > 0 and file.read(1) != b"\n"
            file.write(
                (b"\n" if broken else b"")
                + json.dumps(asdict(entry), sort_keys=True).encode()
                + b"\n"
            )
            file.flush()
            os.fsync(file.fileno())


def make_entry(config: RunConfig, result: dict[str, Any] | None, reason: str | None) -> Entry:
    """What the ledger keeps of a run that ended here."""
    status = "done" if result is not None else "failed"
    machine = f"{platform.machine()} {os.cpu_count()} cores"
    return Entry(
        config.id,
        status,
        json.loads(config.to_json()),
        result,
        reason,
        commit(),
        machine,
        files=sources_of(config),
    )


@functools.cache
def commit() -> str:
    """The commit of the source when first asked, with + where it was changed; the version if it is not in a repository."""
    place = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"],
            cwd=place,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
        changes = subprocess.run(
            ["git", "status", "--porcelain", "."],
            cwd=place.parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return f"version {__version__}"
    return head.stdout.strip() + ("+" if changes.stdout.strip() else "")
