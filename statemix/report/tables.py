"""Tables with the paper's value next to ours, as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Iterable, Sequence

from statemix.report.gather import Neighbour

__all__ = [
    "agreement",
    "comma_separated",
    "coverage",
    "facts",
    "furthest",
    "grids",
    "is_close",
    "latex",
    "markdown",
    "markdown_table",
]

_Grid = dict[tuple[str, str], Neighbour]  # by row and column
_CLOSE = 0.02  # the largest difference that counts as agreement
_BELOW = 0.05  # the largest difference that counts as agreement or better
_SOLVED = 0.98


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
    """Our mean ± deviation [seeds], (the paper's, difference).

    A dot marks a cell that has not been run, a dagger a value that is commented out in the paper's
    source, and a double dagger runs of ours at the paper's size.
    """
    if n is None:
        return ""
    paper = f"{n.paper.accuracy:.3f}{'' if n.paper.printed else '†'}"
    if n.mean is None or n.difference is None:
        return f"· ({paper})"
    spread = f" ± {n.deviation:.3f}" if n.runs > 1 and not n.is_average else ""
    seeds = "" if n.is_average else f" [{n.runs}]"
    size = "‡" if n.full_size else ""
    return f"{n.mean:.3f}{spread}{size}{seeds} ({paper}, {_signed(n.difference)})"


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
    "mean",
    "deviation",
    "seeds",
    "best",
    "difference",
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
            if n.mean is None
            else [n.mean, n.deviation, n.runs, n.best, n.difference, n.recipe, size]
        )
        writer.writerow(
            [n.paper.table, n.paper.row, n.paper.column, n.paper.accuracy, *ours, n.paper.printed]
        )
    return out.getvalue()


def is_close(n: Neighbour) -> bool:
    """True if our mean is at most .05 below the paper's number."""
    return n.difference is not None and n.difference >= -_BELOW


def facts(neighbours: list[Neighbour]) -> list[tuple[str, int]]:
    """What is measured of the paper's numbers, how much of it agrees, and what it rests on."""
    measured = [n for n in neighbours if n.mean is not None]
    close = [n for n in measured if abs(n.difference or 0.0) <= _CLOSE]
    cells = [n for n in measured if not n.is_average]
    return [
        ("values in the paper's tables", len(neighbours)),
        ("commented out in the paper's source", sum(not n.paper.printed for n in neighbours)),
        ("measured here", len(measured)),
        (f"our mean is within {_BELOW} of the paper or above", sum(map(is_close, measured))),
        (f"our mean is within {_CLOSE} of the paper", len(close)),
        (
            f"of these, both are at least {_SOLVED}",
            sum(min(n.mean or 0.0, n.paper.accuracy) >= _SOLVED for n in close),
        ),
        ("averages of other values", len(measured) - len(cells)),
        ("of the others, rest on one seed", sum(n.runs == 1 for n in cells)),
        ("of the others, have three seeds or more", sum(n.runs >= 3 for n in cells)),
        (
            "of the others, have the paper's width and number of sequences",
            sum(n.as_large for n in cells),
        ),
        ("of the others, are runs of --scale paper", sum(n.full_size for n in cells)),
    ]


def coverage(neighbours: list[Neighbour]) -> str:
    """`facts` as text, one a line, after the number of measured values of each table."""
    lines = [
        f"{table}: {sum(n.mean is not None for n in grid.values())} of {len(grid)} measured"
        for table, grid in grids(neighbours).items()
    ]
    return "\n".join([*lines, *(f"{count:>3} {fact}" for fact, count in facts(neighbours))])


def agreement(neighbours: list[Neighbour]) -> str:
    """One sentence on how many of the paper's values we reach."""
    found = dict(facts(neighbours))
    close = found[f"our mean is within {_BELOW} of the paper or above"]
    return (
        f"{found['measured here']} of the paper's {len(neighbours)} values are measured; "
        f"{close} of our means are within {_BELOW} of the paper or above."
    )


def furthest(neighbours: list[Neighbour], count: int = 20) -> str:
    """A table of the largest differences from the paper."""
    measured = [
        n for n in neighbours if n.difference is not None and not n.is_average and n.paper.printed
    ]
    columns = ("table", "model", "task", "ours", "paper", "difference", "runs", "recipe")
    rows = [
        (
            n.paper.table,
            n.paper.row,
            n.paper.column,
            f"{n.mean:.3f}",
            f"{n.paper.accuracy:.3f}",
            _signed(n.difference or 0.0),
            str(n.runs),
            n.recipe,
        )
        for n in sorted(measured, key=lambda n: -abs(n.difference or 0.0))[:count]
    ]
    return markdown_table(columns, rows)
