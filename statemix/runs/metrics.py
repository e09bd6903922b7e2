"""Metrics as JSON lines, appended while a run trains."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from statemix.config.build import build
from statemix.files.json_files import parse_object
from statemix.files.writing import naming, write_atomically

__all__ = ["Metrics", "read_metrics", "read_reports"]

Report = TypeVar("Report")


class Metrics:
    """The file `path`, which starts with `lines`: those up to the checkpoint of a resumed run.

    A rank that does not write (`writes=False`) leaves the file alone.
    """

    def __init__(self, path: Path, lines: Iterable[dict[str, Any]], *, writes: bool = True) -> None:
        self.path = path
        self.writes = writes
        if writes:
            write_atomically(path, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def append(self, report: Any) -> None:
        """Add the dataclass `report` as a line."""
        if self.writes:
            with naming(self.path), self.path.open("a") as file:
                file.write(json.dumps(asdict(report)) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a line that an interruption cut off is left out."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with suppress(ValueError):
            found.append(parse_object(line))
    return found


def read_reports(kind: type[Report], path: Path) -> tuple[list[Report], int]:
    """The lines of a metrics file as dataclasses, and the number of damaged lines."""
    lines = path.read_bytes().splitlines() if path.is_file() else []
    found = []
    for line in lines:
        with suppress(ValueError):
            found.append(build(kind, parse_object(line)))
    return found, len(lines) - len(found)
