"""Counts of the parts of a run, added up in a file."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from faults.runner import Tally
from statemix.files.writing import write_atomically

__all__ = ["FILE", "Part", "Total", "add", "finished", "load", "totals"]

FILE = Path(__file__).parents[2] / "results" / "faults.json"


@dataclass(frozen=True)
class Part:
    """The counts of a kind in one part of a run of `scale`, such as part 3 of 8."""

    kind: str
    part: int
    parts: int
    scale: int
    seed: int
    cases: int
    failed: int
    labels: dict[str, int]
    seconds: float
    commit: str


@dataclass(frozen=True)
class Total:
    """The counts of a kind over all parts."""

    kind: str
    cases: int
    failed: int
    labels: dict[str, int]
    seconds: float


def load(path: Path = FILE) -> list[Part]:
    """The parts in the file `path`."""
    return [Part(**part) for part in json.loads(path.read_text())] if path.is_file() else []


def finished(parts: list[Part], kind: str, part: int, count: int, scale: int, seed: int) -> bool:
    """True if this part has been run without a failure."""
    place = (kind, part, count, scale, seed)
    return any((p.kind, p.part, p.parts, p.scale, p.seed) == place and not p.failed for p in parts)


def add(path: Path, new: Part) -> None:
    """Write a part in place of its predecessor; parts of the kind at another scale are removed."""
    like = (new.parts, new.scale, new.seed)
    kept = [
        part
        for part in load(path)
        if part.kind != new.kind
        or ((part.parts, part.scale, part.seed) == like and part.part != new.part)
    ]
    rows = sorted((*kept, new), key=lambda part: (part.kind, part.part))
    text = ",\n".join(json.dumps(asdict(row)) for row in rows)
    write_atomically(path, f"[\n{text}\n]\n".encode())


def part_of(
    kind: str, place: tuple[int, int], scale: int, seed: int, tally: Tally, at: str
) -> Part:
    """The counts of `tally`."""
    labels: dict[str, Any] = dict(sorted(tally.labels.items()))
    seconds = round(tally.seconds, 1)
    return Part(kind, *place, scale, seed, tally.cases, len(tally.failures), labels, seconds, at)


def totals(parts: list[Part]) -> dict[str, Total]:
    """The sum over the parts of each kind."""
    found = {}
    for kind in dict.fromkeys(part.kind for part in parts):
        own = [part for part in parts if part.kind == kind]
        labels: Counter[str] = Counter()
        for part in own:
            labels.update(part.labels)
        found[kind] = Total(
            kind,
            sum(part.cases for part in own),
            sum(part.failed for part in own),
            dict(sorted(labels.items())),
            sum(part.seconds for part in own),
        )
    return found
