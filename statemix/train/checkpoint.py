"""Files that are whole or not there: written beside their place and moved into it.

A checkpoint is one safetensors file: tensors by name, and the rest of a run's state as JSON in its header.  Nothing is unpickled.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

STATE = "state"


def write_atomically(path: Path, data: bytes) -> None:
    """Put `data` at `path`, all of it or none, whenever the process or the machine ends."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and state, in the place of what was there."""
    write_atomically(
        path,
        save({name: x.contiguous() for name, x in tensors.items()}, {STATE: json.dumps(state)}),
    )


class DamagedCheckpoint(ValueError):
    """A checkpoint that cannot be read."""


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()[STATE])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError, OSError) as error:
        raise DamagedCheckpoint(
            f"The checkpoint {path} cannot be read ({error}). Delete it to train from the start."
        ) from error
