"""Tables with the paper's value next to ours, as Markdown, LaTeX and CSV."""

import csv
import io
from collections.abc import Callable

from statemix.report.gather import Neighbour

__all__ = ["comma_separated", "coverage", "furthest", "grids", "latex", "markdown"]

Grid = dict[tuple[str, str], Neighbour]  # by row and column
CLOSE = 0.02  # the largest difference that counts as agreement


def grids(neighbours: list[Neighbour]) -> dict[str, Grid]:
    """The numbers of each table by row and column, in the paper's order."""
    found: dict[str, Grid] = {}
    for n in neighbours:
        found.setdefault(n.paper.table, {})[n.paper.row, n.paper.column] = n
    return found


def axes(grid: Grid) -> tuple[list[str], list[str]]:
    """Rows and columns in order of appearance."""
    rows = dict.fromkeys(row for row, _ in grid)
    columns = dict.fromkeys(column for _, column in grid)
    return list(rows), list(columns)


def number(n: Neighbour | None) -> str:
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
    return f"{n.accuracy:.3f}{'‡' if n.full_size else ''}{seeds} ({paper}, {signed(n.difference)})"


def signed(difference: float) -> str:
    """Format a difference with its sign, using a proper minus; zero has no sign."""
    return f"{difference:+.3f}".replace("-", "−") if abs(difference) >= 0.0005 else "0"


def markdown(grid: Grid) -> str:
    rows, columns = axes(grid)
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [
        f"| {row} | {' | '.join(number(grid.get((row, column))) for column in columns)} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def latex(grid: Grid) -> str:
    rows, columns = axes(grid)
    marks = str.maketrans(
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
    escape: Callable[[str], str] = lambda text: text.translate(marks)  # noqa: E731
    lines = [
        rf"\begin{{tabular}}{{l{'c' * len(columns)}}}",
        r"\toprule",
        " & ".join(["", *map(escape, columns)]) + r" \\",
        r"\midrule",
    ]
    lines += [
        " & ".join([escape(row), *(escape(number(grid.get((row, column)))) for column in columns)])
        + r" \\"
        for row in rows
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


FIELDS = (
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
    writer.writerow(FIELDS)
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
    close = [n for n in measured if abs(n.difference or 0.0) <= CLOSE]
    lines = []
    for table, grid in grids(neighbours).items():
        have = sum(n.accuracy is not None for n in grid.values())
        unprinted = sum(not n.paper.printed for n in grid.values())
        note = (
            f", {unprinted} of which are commented out in the paper's source" if unprinted else ""
        )
        lines.append(f"{table}: {have} of {len(grid)} measured{note}")
    once = sum(n.runs == 1 for n in measured if n.paper.column != "overall")
    lines.append(
        f"{sum(n.full_size for n in measured)} at the paper's size, the others at a smaller one; {once} rest on one seed"
    )
    last = f"{len(measured)} of the paper's {len(neighbours)} values have a measured neighbour; {len(close)} of those agree within {CLOSE}."
    return "\n".join([*lines, last])


def furthest(neighbours: list[Neighbour], count: int = 20) -> str:
    """A table of the largest differences from the paper."""
    measured = [
        n
        for n in neighbours
        if n.difference is not None and n.paper.column != "overall" and n.paper.printed
    ]
    lines = [
        "| table | model | task | ours | paper | difference | runs | recipe |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n in sorted(measured, key=lambda n: -abs(n.difference or 0.0))[:count]:
        numbers = (
            f"{n.accuracy:.3f} | {n.paper.accuracy:.3f} | {signed(n.difference or 0.0)} | {n.runs}"
        )
        lines.append(
            f"| {n.paper.table} | {n.paper.row} | {n.paper.column} | {numbers} | {n.recipe} |"
        )
    return "\n".join(lines) + "\n"
