"""A checkpoint in one safetensors file: tensors by name, and other state as JSON in its header.

Nothing is unpickled.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from statemix.runs.files import write_atomically

__all__ = ["DamagedCheckpoint", "load_checkpoint", "save_checkpoint", "with_prefix"]

_STATE = "state"


class DamagedCheckpoint(ValueError):
    """A checkpoint that cannot be read."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and state to `path`, replacing the previous checkpoint."""
    stored = {name: x.contiguous() for name, x in tensors.items()}
    write_atomically(path, save(stored, {_STATE: json.dumps(state)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the state that `save_checkpoint` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            state = json.loads(file.metadata()[_STATE])
            return {name: file.get_tensor(name) for name in file.keys()}, state  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, json.JSONDecodeError, OSError) as error:
        raise DamagedCheckpoint(
            f"The checkpoint {path} cannot be read ({error}). Delete it to train from the start."
        ) from error


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
