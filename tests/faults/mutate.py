"""Mutations of files: of bytes, of JSON values, of safetensors, and of what a path names."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["ASIDE", "mutate"]

ASIDE = "elsewhere"  # the name of a file in whose place there is something else

_NUMBERS = (-1, 0, 1, 2**31, 2**63, 2**64, 10**30, -(2**63), 1e308, 1e-320, 0.5, True)
_ODD = (float("nan"), float("inf"), float("-inf"))
_TEXTS = ("", "../outside", "/etc/passwd", "x" * 5_000, "\x00", "é\u202e", "NaN", "[1]", "\ud800")
_VALUES: tuple[Any, ...] = (*_NUMBERS, *_ODD, *_TEXTS, None, [], {}, [[]], [None], {"a": 1})
_DEPTHS = (70, 1_000, 200_000)


def mutate(rng: random.Random, path: Path) -> str:
    """Damage the file `path`; return what was done to it."""
    path.write_bytes(_unshared(path))
    choices: list[Callable[[random.Random, Path], str]] = [_of_bytes] * 6
    choices += [_of_path]
    if path.suffix in (".json", ".jsonl"):
        choices += [_of_json] * 8
    if path.suffix == ".safetensors":
        choices += [_of_header] * 4 + [_of_tensors] * 4
    return rng.choice(choices)(rng, path)


def _unshared(path: Path) -> bytes:
    """The bytes of a file, which is removed: it may have other names."""
    data = path.read_bytes()
    path.unlink()
    return data


# Bytes


def _of_bytes(rng: random.Random, path: Path) -> str:
    data = bytearray(path.read_bytes())
    start = rng.randrange(max(1, len(data)))
    stop = min(len(data), start + rng.choice((1, 4, 64, 4_096)))
    name = rng.choice(sorted(_BYTES))
    changed = _BYTES[name](rng, data, start, stop)
    path.write_bytes(bytes(changed))
    return f"{name}, bytes {start} to {stop} of {len(data)}"


def _flip(rng: random.Random, data: bytearray, start: int, stop: int) -> bytes:
    if data:
        data[start] ^= 1 << rng.randrange(8)
    return data


def _noise(rng: random.Random, data: bytearray, start: int, stop: int) -> bytes:
    data[start:stop] = rng.randbytes(stop - start)
    return data


def _twice(rng: random.Random, data: bytearray, start: int, stop: int) -> bytes:
    return data[:stop] + data[start:]


_BYTES: dict[str, Callable[[random.Random, bytearray, int, int], bytes]] = {
    "flip a bit": _flip,
    "noise": _noise,
    "zeros": lambda rng, data, start, stop: data[:start] + bytes(stop - start) + data[stop:],
    "truncate": lambda rng, data, start, stop: data[:start],
    "append": lambda rng, data, start, stop: data + rng.randbytes(stop - start),
    "delete": lambda rng, data, start, stop: data[:start] + data[stop:],
    "repeat": _twice,
    "empty": lambda rng, data, start, stop: b"",
    "not UTF-8": lambda rng, data, start, stop: data[:start] + b"\xff\xfe\xed\xa0" + data[start:],
    "deep": lambda rng, data, start, stop: b"[" * 20_000 + data,
    "line feeds": lambda rng, data, start, stop: data[:start] + b"\n" * 9 + data[start:],
}


# JSON


def _of_json(rng: random.Random, path: Path) -> str:
    """Replace, add, rename or remove a value of a JSON text, or of one line."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    value = json.loads(lines[number])
    lines[number], done = _changed(rng, value)
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass") + b"\n")
    return done


def _changed(rng: random.Random, value: Any) -> tuple[str, str]:
    """The text of a value in which one place is another, and what was changed."""
    places = list(_places(value))
    if not places or rng.random() < 0.05:
        new = rng.choice(_VALUES)
        return json.dumps(new), f"the value {new!r}"
    owner, key = rng.choice(places)
    way = rng.choice(("replace", "replace", "replace", "remove", "rename", "add", "nest"))
    if way == "nest":
        depth = rng.choice(_DEPTHS)
        owner[key] = "@"
        text = json.dumps(value).replace('"@"', "[" * depth + "]" * depth, 1)
        return text, f"{key!r} nested {depth} deep"
    if way == "remove":
        del owner[key]
        return json.dumps(value), f"without {key!r}"
    if way in ("rename", "add") and isinstance(owner, dict):
        name = rng.choice(("", "../x", "extra", "\x00"))
        owner[name] = owner.pop(key) if way == "rename" else owner[key]
        return json.dumps(value), f"{way} {key!r} as {name!r}"
    owner[key] = rng.choice(_near(owner[key]))
    return json.dumps(value), f"{key!r} = {str(owner[key])[:40]!r}"


def _near(value: Any) -> list[Any]:
    """Hostile values, and some that are close to `value`."""
    near: list[Any] = []
    if isinstance(value, int | float) and not isinstance(value, bool):
        near = [value + 1, value - 1, -value, value * 1000, float(value), str(value)]
    if isinstance(value, str):
        near = [value + "x", value[:-1], value.upper(), f"../{value}", f"/{value}"]
    if isinstance(value, list):
        near = [value * 2, value[1:], [value], dict(enumerate(map(str, value)))]
    return [*_VALUES, *near, *near]


def _places(value: Any) -> Any:
    """Every (container, key) below a value."""
    if not isinstance(value, dict | list):
        return
    for key, each in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        yield from _places(each)


# safetensors


def _of_header(rng: random.Random, path: Path) -> str:
    """Change the JSON header of a safetensors file."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    names = [name for name in header if name != "__metadata__"]
    entry = header[rng.choice(names)]
    way = rng.choice(("dtype", "shape", "data_offsets", "any", "size"))
    if way == "dtype":
        entry["dtype"] = rng.choice(("I32", "F16", "BF16", "F64", "I64", "BOOL", "U8", "X"))
    elif way in ("shape", "data_offsets"):
        entry[way] = rng.choice(([], [0], [2**40], [1, *entry[way]], entry[way][::-1], [-1], "x"))
    text = json.dumps(header) if way != "any" else _changed(rng, header)[0]
    written = text.encode(errors="surrogatepass")
    length = len(written) if way != "size" else rng.choice((0, 2**20, 2**40, 2**63))
    path.write_bytes(struct.pack("<Q", length) + written + data[8 + size :])
    return f"header: {way}"


def _of_tensors(rng: random.Random, path: Path) -> str:
    """Change numbers of a tensor, without its hash."""
    data = bytearray(path.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    count = (len(data) - start) // 4
    value = rng.choice((float("nan"), float("inf"), -1e30, 1e-40, 0.0, 1.0))
    for _ in range(rng.choice((1, 1, 10, 1_000))):
        place = start + 4 * rng.randrange(count)
        data[place : place + 4] = struct.pack("<f", value)
    path.write_bytes(bytes(data))
    return f"tensors: {value}"


# What a path names


def _of_path(rng: random.Random, path: Path) -> str:
    way = rng.choice(("missing", "directory", "loop", "dangling", "link", "fifo", "device"))
    kept = path.with_name(ASIDE)
    shutil.move(path, kept)
    if way == "directory":
        path.mkdir()
    elif way == "loop":
        path.symlink_to(path.name)
    elif way == "dangling":
        path.symlink_to("nowhere")
    elif way == "link":
        path.symlink_to(kept.name)
    elif way == "fifo":
        os.mkfifo(path)
    elif way == "device":
        path.symlink_to("/dev/zero")
    if way != "link":
        kept.unlink()
    return f"path: {way}"
