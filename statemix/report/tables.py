"""Tables with the paper's value beside ours, as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable

from statemix.report.gather import Neighbour

Grid = dict[tuple[str, str], Neighbour]  # by row and column
CLOSE = 0.02  # a difference that counts as agreement


def grids(neighbours: list[Neighbour]) -> dict[str, Grid]:
    """The numbers of each table by place, in the paper's order."""
    found: dict[str, Grid] = {}
    for n in neighbours:
        found.setdefault(n.paper.table, {})[n.paper.row, n.paper.column] = n
    return found


def axes(grid: Grid) -> tuple[list[str], list[str]]:
    """Rows and columns in order of appearance."""
    return list(dict.fromkeys(row for row, _ in grid)), list(dict.fromkeys(column for _, column in grid))


def number(n: Neighbour | None) -> str:
    """Ours, its spread if there are several runs, and the paper's in brackets; a dot where nothing has been run."""
    if n is None:
        return ""
    if n.accuracy is None:
        return f"· ({n.paper.accuracy:.3f})"
    spread = f" ± {n.deviation:.3f}" if n.deviation else ""
    return f"{n.accuracy:.3f}{spread} ({n.paper.accuracy:.3f})"


def markdown(grid: Grid) -> str:
    rows, columns = axes(grid)
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {row} | {' | '.join(number(grid.get((row, column))) for column in columns)} |" for row in rows]
    return "\n".join(lines) + "\n"


def latex(grid: Grid) -> str:
    rows, columns = axes(grid)
    escape: Callable[[str], str] = lambda text: text.replace("_", r"\_").replace("±", r"$\pm$").replace("·", "--")  # noqa: E731
    lines = [rf"\begin{{tabular}}{{l{'c' * len(columns)}}}", r"\toprule", " & ".join(["", *map(escape, columns)]) + r" \\", r"\midrule"]
    lines += [" & ".join([escape(row), *(escape(number(grid.get((row, column)))) for column in columns)]) + r" \\" for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


FIELDS = ("table", "model", "task", "paper", "ours", "difference", "runs", "deviation", "recipe")


def comma_separated(neighbours: list[Neighbour]) -> str:
    """One line for each of the paper's numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    for n in neighbours:
        ours = ["", "", 0, "", ""] if n.accuracy is None else [n.accuracy, n.difference, n.runs, n.deviation, n.variant]
        writer.writerow([n.paper.table, n.paper.row, n.paper.column, n.paper.accuracy, *ours])
    return out.getvalue()


def coverage(neighbours: list[Neighbour]) -> str:
    """How many of the paper's numbers have a measured neighbour, and how many of those agree."""
    measured = [n for n in neighbours if n.difference is not None]
    close = [n for n in measured if abs(n.difference or 0.0) <= CLOSE]
    by_table = []
    for table, grid in grids(neighbours).items():
        have = sum(n.accuracy is not None for n in grid.values())
        by_table.append(f"{table}: {have} of {len(grid)} measured")
    last = f"{len(measured)} of the paper's {len(neighbours)} values have a measured neighbour; {len(close)} of those agree within {CLOSE}."
    return "\n".join([*by_table, last])
