"""Tensors in safetensors files: read, compared with what they should be, and hashed.

Nothing is unpickled.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from statemix.files.json_files import Damaged
from statemix.files.regular import check_regular

__all__ = ["check_tensors", "dtypes_in", "hash_of_file", "hash_of_tensors", "read_tensors"]

_BLOCK = 1 << 22


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors in a safetensors file, and the text in its header.

    safetensors opens a path more than once, so a file that is replaced meanwhile is read again.
    """
    check_regular(path)
    path.open("rb").close()  # an error of the operating system stays one
    while True:
        before = _version(path)
        try:
            found = _read_once(path)
        except Damaged:
            if _version(path) == before:
                raise
        else:
            if _version(path) == before:
                return found


def _version(path: Path) -> tuple[int, int, int]:
    """What changes when a file is replaced or written."""
    status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size


def _read_once(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Damaged(_short(error)) from error
    except (AttributeError, RuntimeError, OSError) as error:  # an unknown dtype; an odd shape
        raise Damaged(_short(error)) from error


def dtypes_in(path: Path) -> set[str]:
    """The dtypes of the tensors in a safetensors file, as its header spells them."""
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            return {file.get_slice(name).get_dtype() for name in names}
    except (SafetensorError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Damaged(_short(error)) from error


def _short(error: Exception) -> str:
    """The first line of an error."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def check_tensors(tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise `Damaged` unless names, shapes and dtypes are as `expected`, and all numbers finite."""
    missing = sorted(set(expected) - set(tensors))
    unknown = sorted(set(tensors) - set(expected))
    if missing or unknown:
        named = [("missing", missing), ("unknown", unknown)]
        listed = "; ".join(f"{label}: {', '.join(names[:3])}" for label, names in named if names)
        raise Damaged(f"its tensors are not those of the model ({listed})")
    for name, like in expected.items():
        x = tensors[name]
        if x.shape != like.shape:
            raise Damaged(f"`{name}` must have the shape {tuple(like.shape)}, got {tuple(x.shape)}")
        if x.dtype != like.dtype:
            raise Damaged(f"`{name}` must be {like.dtype}, got {x.dtype}")
        if x.is_floating_point() and not x.isfinite().all():
            raise Damaged(f"`{name}` has numbers that are infinite or NaN")


def hash_of_tensors(tensors: Mapping[str, Tensor], text: str = "") -> str:
    """SHA-256 of the names, dtypes, shapes and bytes of tensors, and of a text."""
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        x = tensors[name].detach().cpu().contiguous()
        found.update(f"{name} {x.dtype} {tuple(x.shape)}".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def hash_of_file(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    check_regular(path)
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()
