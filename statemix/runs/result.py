"""The result of a finished run, as JSON."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from statemix.files.json_files import Damaged, read_as
from statemix.files.writing import write_atomically
from statemix.runs.layout import RESULT

__all__ = ["DamagedResult", "read_result", "write_result"]

Result = TypeVar("Result")


class DamagedResult(Damaged):
    """A result that cannot be read."""


def write_result(directory: Path, result: Any) -> None:
    """Write the dataclass `result` to `directory`."""
    write_atomically(directory / RESULT, (json.dumps(asdict(result)) + "\n").encode())


def read_result(kind: type[Result], directory: Path, run_id: str) -> Result | None:
    """The result in `directory` of the run with the id `run_id`, or None if it is not finished."""
    path = directory / RESULT
    if not path.is_file():
        return None
    try:
        result: Any = read_as(kind, path, "Delete it to write it again from the last checkpoint.")
    except Damaged as error:
        raise DamagedResult(str(error)) from error
    if result.id != run_id:
        raise ValueError(
            f"{directory} holds the result of another run (id {result.id}, this one is {run_id}). "
            "Choose another directory, or delete it."
        )
    return result
