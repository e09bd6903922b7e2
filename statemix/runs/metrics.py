"""Metrics as JSON lines, appended while a run trains."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from statemix.runs.files import write_atomically

__all__ = ["Metrics", "read_metrics"]


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
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(report)) + "\n")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a line that an interruption cut off is left out."""
    lines = path.read_text().splitlines() if path.is_file() else []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return [line for line in found if isinstance(line, dict)]
