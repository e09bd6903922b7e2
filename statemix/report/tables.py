"""Tables with the paper's value next to ours, as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence

from statemix.report.gather import Neighbour

__all__ = [
    "comma_separated",
    "coverage",
    "furthest",
    "grids",
    "latex",
    "markdown",
    "markdown_table",
]

_Grid = dict[tuple[str, str], Neighbour]  # by row and column
_CLOSE = 0.02  # the largest difference that counts as agreement


def grids(neighbours: list[Neighbour]) -> dict[str, _Grid]:
    """The numbers of each table by row and column, in the paper's order."""
    found: dict[str, _Grid] = {}
    for n in neighbours:
        found.setdefault(n.paper.table, {})[n.paper.row, n.paper.column] = n
    return found


def _axes(grid: _Grid) -> tuple[list[str], list[str]]:
    """Rows and columns in order of appearance."""
    rows = dict.fromkeys(row for row, _ in grid)
    columns = dict.fromkeys(column for _, column in grid)
    return list(rows), list(columns)


def _number(n: Neighbour | None) -> str:
    """Our accuracy, [mean ± deviation, seeds] if there are several, (the paper's, difference).

    A dot marks a cell that has not been run, a dagger a value that is commented out in the paper's
    source, and a double dagger a run of ours at the paper's size.
    """
    if n is None:
        return ""
    paper = f"{n.paper.accuracy:.3f}{'' if n.paper.printed else '†'}"
    if n.accuracy is None or n.difference is None:
        return f"· ({paper})"
    several = n.runs > 1 and n.paper.column != "overall"
    seeds = f" [{n.mean:.3f} ± {n.deviation:.3f}, {n.runs}]" if several else ""
    return f"{n.accuracy:.3f}{'‡' if n.full_size else ''}{seeds} ({paper}, {_signed(n.difference)})"


def _signed(difference: float) -> str:
    """Format a difference with its sign, using a proper minus; zero has no sign."""
    return f"{difference:+.3f}".replace("-", "−") if abs(difference) >= 0.0005 else "0"


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; bars in its cells are escaped, since they would end the cell."""
    cells = ([cell.replace("|", "\\|") for cell in row] for row in rows)
    lines = [f"| {' | '.join(row)} |" for row in (columns, *cells)]
    return "\n".join([lines[0], "|---" * len(columns) + "|", *lines[1:]]) + "\n"


def markdown(grid: _Grid) -> str:
    """A table of the paper in Markdown."""
    rows, columns = _axes(grid)
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [
        f"| {row} | {' | '.join(_number(grid.get((row, column))) for column in columns)} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def latex(grid: _Grid) -> str:
    """A table of the paper in LaTeX."""
    rows, columns = _axes(grid)
    lines = [
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        " & ".join(["", *map(_escape, columns)]) + r" \\",
        r"\midrule",
    ]
    for row in rows:
        cells = (_escape(_number(grid.get((row, column)))) for column in columns)
        lines.append(" & ".join([_escape(row), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


_MARKS = str.maketrans(
    {
        "_": r"\_",
        "±": r"$\pm$",
        "·": "--",
        "−": "$-$",
        "†": r"\dag",
        "‡": r"\ddag",
        "|": r"$\vert$",
    }
)


def _escape(text: str) -> str:
    """Replace the characters that LaTeX reads as commands, or does not know."""
    return text.translate(_MARKS)


_FIELDS = (
    "table",
    "model",
    "task",
    "paper",
    "ours",
    "difference",
    "runs",
    "mean",
    "deviation",
    "recipe",
    "size",
    "printed",
)


def comma_separated(neighbours: list[Neighbour]) -> str:
    """CSV with one line for each of the paper's numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_FIELDS)
    for n in neighbours:
        size = "paper" if n.full_size else "smaller"
        ours = (
            [""] * 7
            if n.accuracy is None
            else [n.accuracy, n.difference, n.runs, n.mean, n.deviation, n.recipe, size]
        )
        writer.writerow(
            [n.paper.table, n.paper.row, n.paper.column, n.paper.accuracy, *ours, n.paper.printed]
        )
    return out.getvalue()


def coverage(neighbours: list[Neighbour]) -> str:
    """Summarise how many of the paper's numbers we have measured, and how many of those agree."""
    measured = [n for n in neighbours if n.difference is not None]
    close = sum(abs(n.difference or 0.0) <= _CLOSE for n in measured)
    lines = []
    for table, grid in grids(neighbours).items():
        have = sum(n.accuracy is not None for n in grid.values())
        hidden = sum(not n.paper.printed for n in grid.values())
        note = f", {hidden} of which are commented out in the paper's source" if hidden else ""
        lines.append(f"{table}: {have} of {len(grid)} measured{note}")
    once = sum(n.runs == 1 for n in measured if n.paper.column != "overall")
    lines.append(
        f"{sum(n.full_size for n in measured)} at the paper's size, the others at a smaller one; "
        f"{once} rest on one seed"
    )
    lines.append(
        f"{len(measured)} of the paper's {len(neighbours)} values have a measured neighbour; "
        f"{close} of those agree within {_CLOSE}."
    )
    return "\n".join(lines)


def furthest(neighbours: list[Neighbour], count: int = 20) -> str:
    """A table of the largest differences from the paper."""
    measured = [
        n
        for n in neighbours
        if n.difference is not None and n.paper.column != "overall" and n.paper.printed
    ]
    columns = ("table", "model", "task", "ours", "paper", "difference", "runs", "recipe")
    rows = [
        (
            n.paper.table,
            n.paper.row,
            n.paper.column,
            f"{n.accuracy:.3f}",
            f"{n.paper.accuracy:.3f}",
            _signed(n.difference or 0.0),
            str(n.runs),
            n.recipe,
        )
        for n in sorted(measured, key=lambda n: -abs(n.difference or 0.0))[:count]
    ]
    return markdown_table(columns, rows)
