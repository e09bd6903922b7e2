"""What `statemix leaderboard` prints: a live table while runs train, then the standings."""

from pathlib import Path

from rich.table import Table

from statemix.commands.views.board import Board as LiveBoard
from statemix.commands.views.console import make_console, say, warn
from statemix.config.task import RunConfig
from statemix.leaderboard import measure
from statemix.leaderboard.protocols import Protocol
from statemix.leaderboard.tables import Board, make_boards, update_markdown, write_page
from statemix.sweep import Ledger, sweep

__all__ = ["print_boards", "run_cells"]


def run_cells(
    configs: list[RunConfig], ledger: Path, runs: Path, files: tuple[Path, ...], workers: int
) -> bool:
    """Run the cells that the ledger lacks; return False if a cell has no result in the end."""
    if not configs:
        return True
    place = Ledger(ledger)
    done = place.done()
    with LiveBoard([config for config in configs if config.id not in done]) as board:
        summary = sweep(
            configs,
            place,
            runs,
            engine="local",
            workers=workers,
            files=(Path(str(measure.__file__)), *(path.resolve() for path in files)),
            observe=board.observe,
        )
    say(f"{summary.done} runs done, {summary.failed} failed, {summary.already_done} were done.")
    return not summary.missing


def print_boards(protocol: Protocol, ledger: Path, out: Path | None) -> None:
    """Print the tables of a protocol, and write them to `out` if it is given."""
    entries, complaints = Ledger(ledger).read()
    for complaint in complaints:
        warn(complaint)
    boards = make_boards(protocol, entries)
    for board in boards:
        _print(board)
    if out is None:
        return
    if out.suffix == ".md":
        update_markdown(out, boards)
    elif out.suffix == ".html":
        write_page(out, protocol.title, boards)
    else:
        raise ValueError(f"--out takes a .md or an .html file, got {out}.")


def _print(board: Board) -> None:
    table = Table(*board.columns, title=board.title, title_justify="left", box=None)
    for row in board.rows:
        table.add_row(*row)
    make_console().print(table)
