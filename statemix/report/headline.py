"""The paper's two main tables as HTML: our mean and spread beside the paper's number."""

import html
from collections.abc import Sequence

from statemix.paper import BASELINES, bdlru, hlru
from statemix.report.gather import Neighbour
from statemix.report.names import plain_column, plain_row
from statemix.report.tables import facts, is_close

__all__ = ["facts_table", "main_tables"]

_MAD_ROWS = (
    *BASELINES,
    *(bdlru(m) for m in (1, 2, 3, 5, 8)),
    *(hlru(m) for m in (1, 2, 3, 5, 8)),
)
_GROUP_ROWS = tuple(bdlru(m) for m in (1, 2, 3, 4, 5))
_MAD = ("recall", "copy", "compress", "overall")
_GROUPS = ("S3-10k", "S4-50k", "S5-100k")


def main_tables(found: Sequence[Neighbour]) -> str:
    """The paper's tables 1 and 2, with the rows and columns that it prints there."""
    by_place = {(n.paper.table, n.paper.row, n.paper.column): n for n in found}
    mad = _table("table_mad", _MAD_ROWS, _MAD, by_place, "Token manipulation: the paper's table 1")
    groups = _table(
        "table_groups", _GROUP_ROWS, _GROUPS, by_place, "Permutations: the paper's table 2"
    )
    return mad + groups


def _table(
    table: str,
    rows: Sequence[str],
    columns: Sequence[str],
    by_place: dict[tuple[str, str, str], Neighbour],
    title: str,
) -> str:
    head = "".join(f'<th scope="col">{_breakable(plain_column(each))}</th>' for each in columns)
    lines = []
    for row in rows:
        cells = "".join(_cell(by_place[table, row, column]) for column in columns)
        lines.append(f'<tr><th scope="row">{_breakable(plain_row(row))}</th>{cells}</tr>')
    return (
        f'<table class="main"><caption>{html.escape(title)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _cell(n: Neighbour) -> str:
    """Our mean, its spread and number of seeds, and the paper's number."""
    theirs = f'<span class="theirs"><i>paper </i>{n.paper.accuracy:.3f}</span>'
    if n.mean is None:
        return f"<td>not run {theirs}</td>"
    kind = "near" if is_close(n) else "far"
    spread = f"± {n.deviation:.3f} <b>n {n.runs}</b>" if n.runs > 1 else f"<b>n {n.runs}</b>"
    shown = "" if n.is_average else f' <span class="spread">{spread}</span>'
    return (
        f'<td tabindex="0" data-tip="{html.escape(_words(n))}">'
        f'<span class="{kind}">{n.mean:.3f}</span>{shown} {theirs}</td>'
    )


def _breakable(name: str) -> str:
    """A name that may be divided where a narrow column needs it, and nowhere else."""
    text = html.escape(name).replace("m = ", "m&nbsp;=&nbsp;")
    return text.replace("Product", "&shy;Product").replace("compress", "com&shy;press")


def _words(n: Neighbour) -> str:
    """What the tooltip says: the seeds, the best of them, and the recipe."""
    name = f"{plain_row(n.paper.row)}, {plain_column(n.paper.column)}"
    difference = f"{n.difference:+.3f}".replace("-", "−")
    mean = f"{n.mean:.3f} here, {n.paper.accuracy:.3f} in the paper ({difference})"
    if n.is_average:
        return f"{name}\n{mean}\nthe mean of the other columns"
    seeds = f"{n.runs} seeds, the best {n.best:.3f}" if n.runs > 1 else "one seed"
    return f"{name}\n{mean}\n{seeds}\nrecipe: {n.recipe}"


def facts_table(found: Sequence[Neighbour]) -> str:
    """What is measured, agrees, and rests on what."""
    rows = "".join(
        f'<tr><th scope="row">{html.escape(fact)}</th><td>{count}</td></tr>'
        for fact, count in facts(list(found))
    )
    return f"<table><tbody>{rows}</tbody></table>"
