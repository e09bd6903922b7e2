"""Measurements as Markdown: one table per part, and one line per setting.

The reference of a contest has its value, and every other entrant has its ratio to it, or a lower
bound of it.
"""

from collections.abc import Iterable
from pathlib import Path

from statemix.bench.measure import Row
from statemix.files.json_files import read_rows as read_file

__all__ = ["markdown", "read_rows"]


def read_rows(files: Iterable[Path]) -> list[Row]:
    """The rows of files of JSON lines, in order."""
    return [row for file in files for row in read_file(Row, file, "Measure again.")]


def markdown(rows: Iterable[Row]) -> str:
    """Tables of all parts; of equal settings, the last measurement counts."""
    parts: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        parts.setdefault(row.part, {}).setdefault(row.setting, {})[row.entrant] = row
    return "\n\n".join(_table(settings) for settings in parts.values())


def _table(settings: dict[str, dict[str, Row]]) -> str:
    entrants = list(dict.fromkeys(name for found in settings.values() for name in found))
    lines = ["| | " + " | ".join(entrants) + " |", "|---" * (len(entrants) + 1) + "|"]
    for setting, found in settings.items():
        cells = [_cell(found[name]) if name in found else "–" for name in entrants]
        lines.append(f"| {setting} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row: Row) -> str:
    if row.entrant == row.reference:
        return f"{row.value:.3g} {row.unit}"
    return f"{row.ratio:.2f}" if row.rounds else f"> {row.ratio:.2g}"
