"""A checkpoint in one safetensors file: tensors by name, and other state as JSON in its header.

The header has a hash of both. Nothing is unpickled.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from statemix.files.json_files import Damaged, parse_object
from statemix.files.tensors import hash_of_tensors, read_tensors
from statemix.files.writing import write_atomically

__all__ = ["DamagedCheckpoint", "load_checkpoint", "save_checkpoint", "unusable", "with_prefix"]

_STATE = "state"
_HASH = "sha256"


class DamagedCheckpoint(Damaged):
    """A checkpoint that cannot be read."""


def save_checkpoint(path: Path, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write tensors and state to `path`, replacing the previous checkpoint."""
    stored = {name: x.contiguous() for name, x in tensors.items()}
    text = json.dumps(state)
    write_atomically(path, save(stored, {_STATE: text, _HASH: hash_of_tensors(stored, text)}))


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the state that `save_checkpoint` wrote."""
    try:
        tensors, header = read_tensors(path)
        if _STATE not in header or set(header) - {_STATE, _HASH}:
            raise Damaged(f"its header must have {_STATE!r}, got {', '.join(header) or 'nothing'}")
        # Checkpoints of the first versions have no hash.
        if header.get(_HASH) not in (None, hash_of_tensors(tensors, header[_STATE])):
            raise Damaged("its hash does not match")
        return tensors, parse_object(header[_STATE])
    except ValueError as error:
        raise unusable(path, error) from error


def unusable(path: Path, error: ValueError) -> DamagedCheckpoint:
    """The error for a checkpoint that cannot be used."""
    return DamagedCheckpoint(
        f"The checkpoint {path} cannot be read ({str(error).removesuffix('.')}). "
        "Delete it to train from the start."
    )


def with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
