"""The ledger: one line of JSON for each run that ended, appended and never changed.

Several processes may share a ledger. A process claims a cell before it runs it, so a cell runs
once at a time; the claim ends with the process that holds it. A line is written under the ledger's
lock, and only if the ledger has no result of that run yet. A line that cannot be parsed, for
example because the disk was full, is reported and skipped, and its cell is run again.
"""

import functools
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from statemix import __version__
from statemix.config.build import build, shown
from statemix.config.task import RunConfig
from statemix.files.json_files import parse_object
from statemix.files.regular import check_regular
from statemix.files.writing import naming
from statemix.runs.lock import held, lock
from statemix.sweep.kinds import Config, read_config
from statemix.train.metrics import Share
from statemix.train.sources import sources_of

__all__ = ["Entry", "Ledger", "commit", "make_entry"]


@dataclass(frozen=True)
class Entry:
    """A line of the ledger: a run's config and its result, or the reason why it has no result.

    `files` has a hash of each user file that defines the run's mixer or task.
    """

    id: str
    status: Literal["done", "failed"]
    config: dict[str, Any]
    result: dict[str, Any] | None
    reason: str | None
    commit: str
    machine: str
    version: str = __version__
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Split:
    """The accuracies on a split, by kind."""

    accuracies: dict[str, Share]


@dataclass(frozen=True)
class _Perplexity:
    """The number of a language model that tables read."""

    perplexity: float


@dataclass(frozen=True)
class Ledger:
    """A file of entries."""

    path: Path

    def read(self) -> tuple[list[Entry], list[str]]:
        """All entries, and a complaint for each line that cannot be parsed."""
        lines = self._lines()
        entries = []
        complaints = []
        for number, line in enumerate(lines, 1):
            try:
                entries.append(_parse(line))
            except ValueError as error:
                if line.strip():
                    what = str(error).removesuffix(".")
                    complaints.append(
                        f"{self.path}, line {number} is damaged and was skipped: {what}."
                    )
        return entries, complaints

    def _lines(self) -> list[bytes]:
        if not self.path.exists():
            return []
        check_regular(self.path)
        with self.path.open("rb") as file:
            lock(file, shared=True)  # no line is half written
            return file.read().splitlines()

    def done(self) -> set[str]:
        """Ids of the runs that have a result."""
        return {entry.id for entry in self.read()[0] if entry.status == "done"}

    def find(self, id_: str) -> Entry | None:
        """The entry with the result of a run, if it has one."""
        return next((e for e in _entries_of(id_, self._lines()) if e.status == "done"), None)

    def claim(self, id_: str, *, wait: bool = False) -> AbstractContextManager[None]:
        """Hold a cell of this ledger; raise `Busy` if another process does and `wait` is False."""
        return held(self.path.with_suffix(".claims") / id_, wait=wait)

    def outdated(self, configs: Sequence[Config]) -> list[str]:
        """User files that have changed since runs of `configs` were made."""
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
        """Raise an error before anything is run if the ledger cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            check_regular(self.path)
        self.path.open("ab").close()

    def append(self, entry: Entry) -> Entry:
        """Write a line unless the run has a result or this very line; return the entry that counts.

        If the last line was cut off, a new line is started first.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with naming(self.path), self.path.open("ab+") as file:
            lock(file)
            file.seek(0)
            text = file.read()
            for other in _entries_of(entry.id, text.splitlines()):
                if other.status == "done" or other == entry:
                    return other
            broken = text and not text.endswith(b"\n")
            line = json.dumps(asdict(entry), sort_keys=True).encode() + b"\n"
            file.write(b"\n" + line if broken else line)
            file.flush()
            os.fsync(file.fileno())
        return entry


@functools.cache
def _parse(line: bytes) -> Entry:
    """The entry in a line of a ledger, checked: its id is the hash of its config."""
    entry = build(Entry, parse_object(line))
    config = read_config(entry.config)
    if config.id != entry.id:
        raise ValueError(f"its id {shown(entry.id)} is not that of its config, {config.id}")
    if entry.status == "done":
        _check_result(entry, config)
    return entry


def _check_result(entry: Entry, config: Config) -> None:
    """Raise an error unless the entry has the numbers that tables and figures read."""
    result = entry.result
    if result is None or result.get("id", entry.id) != entry.id:
        raise ValueError("it has no result of its run")
    if isinstance(config, RunConfig):
        for split in ("validation", "test"):
            shares = build(_Split, {"accuracies": result.get(split)}).accuracies
            if "token" not in shares:
                raise ValueError(f"its result has no accuracy of tokens for the {split} set")
    else:
        build(_Perplexity, {"perplexity": result.get("perplexity")})


def _entries_of(id_: str, lines: Iterable[bytes]) -> list[Entry]:
    """The entries of one run among the lines of a ledger."""
    entries = []
    for line in lines:
        if id_.encode() in line:
            with suppress(ValueError):
                entries.append(_parse(line))
    return [entry for entry in entries if entry.id == id_]


def make_entry(config: Config, result: dict[str, Any] | None, reason: str | None) -> Entry:
    """The entry of a run that ended on this machine."""
    status: Literal["done", "failed"] = "done" if result is not None else "failed"
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
    """The commit of the source at the first call, with a + if files have changed since.

    Outside a repository it is the package's version.
    """
    place = Path(__file__).parent
    try:
        head = _git(place, "rev-parse", "--short=12", "HEAD")
        changes = _git(place.parent, "status", "--porcelain", ".")
    except (OSError, subprocess.SubprocessError):
        return f"version {__version__}"
    return head + ("+" if changes else "")


def _git(place: Path, *arguments: str) -> str:
    """What git prints in the directory `place`."""
    return subprocess.run(
        ["git", *arguments], cwd=place, capture_output=True, text=True, check=True, timeout=10
    ).stdout.strip()
