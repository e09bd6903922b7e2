"""Standings as tables: Markdown for documents, one page of HTML, and lines for a terminal."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from statemix.files.writing import write_atomically
from statemix.leaderboard.proofs import ProvedRuns, proved_runs
from statemix.leaderboard.protocols import Protocol
from statemix.leaderboard.published import SOURCES, PublishedValue, read_published
from statemix.leaderboard.standings import Standing, standings
from statemix.pages.document import make_document, section
from statemix.report.tables import markdown_table
from statemix.sweep import Entry

__all__ = ["Board", "make_boards", "update_markdown", "write_page"]

_REGION = re.compile(r"<!-- leaderboard (?P<name>[^\n]+?) -->\n.*?<!-- end -->(?:\n|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Board:
    """A table with a name, a title and one row for each contestant, or for each of its tasks."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table in Markdown."""
        return markdown_table(self.columns, self.rows)

    def html(self) -> str:
        """The table in HTML."""
        head = "".join(f"<th>{html.escape(column)}</th>" for column in self.columns)
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in self.rows)
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        table = f"<table><tr>{head}</tr>\n{body}</table>"
        return section(self.title, f'<div class="wide" tabindex="0">{table}</div>')


def make_boards(protocol: Protocol, entries: Iterable[Entry]) -> list[Board]:
    """The tables of a protocol: both tracks, the runs of each, proofs, and published numbers."""
    entries = list(entries)
    found = standings(entries, protocol)
    published = read_published(protocol.name)
    boards = [_overview(protocol, [s for s in found if s.track == "open"], "open")]
    boards.append(_details(protocol, [s for s in found if s.track == "open"], "open"))
    boards.append(_proofs(protocol, proved_runs(entries, protocol)))
    boards.append(_published(protocol, published))
    boards.append(_details(protocol, [s for s in found if s.track == "published"], "published"))
    return [board for board in boards if board.rows]


def _overview(protocol: Protocol, found: list[Standing], track: str) -> Board:
    """One row for each contestant: accuracy, and seeds that solve the task, for each task."""
    by_place = {(s.mixer, s.task): s for s in found}
    rows = [
        (mixer, *(_short(by_place.get((mixer, task))) for task in protocol.tasks))
        for mixer in dict.fromkeys(s.mixer for s in found)
    ]
    title = f"{protocol.title}. Track: {track}"
    return Board(f"{protocol.name} {track}", title, ("mixer", *protocol.tasks), rows)


def _short(standing: Standing | None) -> str:
    if standing is None:
        return "–"
    proved = f", {standing.certified} proved" if standing.certified else ""
    return (
        f"{_number(standing.accuracy, standing.sd)} ({standing.solved} of {standing.seeds}{proved})"
    )


def _number(accuracy: float, sd: float | None) -> str:
    return f"{accuracy:.3f}" + (f" ± {sd:.3f}" if sd is not None else "")


def _details(protocol: Protocol, found: list[Standing], track: str) -> Board:
    """One row for each contestant and task."""
    tasks = list(protocol.tasks)
    ordered = sorted(found, key=lambda s: tasks.index(s.task))
    columns = (
        "task", "mixer", "accuracy", "holds to", "seeds solved", "certified", "steps",
        "CPU minutes", "rate",
    )  # fmt: skip
    rows = [
        (
            s.task,
            s.mixer,
            _number(s.accuracy, s.sd),
            _held(s),
            f"{s.solved} of {s.seeds}",
            f"{s.certified} of {s.seeds}" if s.certified else "–",
            f"{s.steps:,}",
            f"{s.minutes:.1f}",
            f"{s.lr:g}",
        )
        for s in ordered
    ]
    return Board(f"{protocol.name} {track} runs", f"The runs of the {track} track", columns, rows)


def _held(standing: Standing) -> str:
    """The length to which every seed holds, and the best one if it holds further."""
    if standing.certified == standing.seeds:
        return "every length"
    least, most = (str(length) if length else "below 64" for length in standing.held)
    return least if least == most else f"{least} to {most}"


def _proofs(protocol: Protocol, found: list[ProvedRuns]) -> Board:
    """One row for each setting of other experiments whose runs were to be proved."""
    columns = (
        "task", "mixer", "layers", "trained at", "answers", "seeds proved", "CPU minutes, median",
        "largest",
    )  # fmt: skip
    rows = [
        (
            runs.task,
            runs.mixer,
            str(runs.layers),
            f"up to {runs.length}",
            runs.answers,
            f"{runs.proved} of {runs.seeds}",
            *(f"{minutes:.1f}" for minutes in runs.minutes),
        )
        for runs in found
    ]
    title = "Runs of other experiments, proved right at every length"
    return Board(f"{protocol.name} proofs", title, columns, rows)


def _published(protocol: Protocol, values: list[PublishedValue]) -> Board:
    """One row for each mixer and source."""
    by_place = {(v.mixer, v.source, v.task): v for v in values}
    rows = []
    for mixer, source in dict.fromkeys((v.mixer, v.source) for v in values):
        numbers = (by_place.get((mixer, source, task)) for task in protocol.tasks)
        cells = ("–" if v is None else _number(v.accuracy, v.sd) for v in numbers)
        rows.append((mixer, *cells, source))
    columns = ("mixer", *protocol.tasks, "source")
    sources = "; ".join(
        f"{name}: {SOURCES[name]}" for name in dict.fromkeys(v.source for v in values)
    )
    title = f"{protocol.title}. Track: published, as printed ({sources})"
    return Board(f"{protocol.name} published", title, columns, rows)


def update_markdown(path: Path, boards: Iterable[Board]) -> None:
    """Render the regions `<!-- leaderboard NAME -->` .. `<!-- end -->` of a document again."""
    known = {board.name: board for board in boards}

    def replacement(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in known:
            return match[0]  # a table of another protocol
        return f"<!-- leaderboard {name} -->\n\n{known[name].markdown()}\n<!-- end -->\n"

    text = path.read_text()
    fresh = _REGION.sub(replacement, text)
    if fresh != text:
        write_atomically(path, fresh.encode())


def write_page(path: Path, title: str, boards: Iterable[Board]) -> None:
    """Write the tables as one page that needs no network."""
    body = "".join(board.html() for board in boards)
    page = make_document(title, f"<h1>{html.escape(title)}</h1>{body}", figures=(), data={})
    write_atomically(path, page.encode())
