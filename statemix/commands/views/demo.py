"""What `statemix demo` prints: a live table while models train, then a table of the results."""

from pathlib import Path

from rich.table import Table

from statemix.commands.views.board import Board
from statemix.commands.views.console import make_console, say
from statemix.demo import train_models
from statemix.demo.cells import cells
from statemix.demo.page import write_page
from statemix.demo.trained import LENGTHS, Trained

__all__ = ["run_demo"]


def run_demo(page: Path, workers: int, seed: int) -> None:
    """Train every model, print the table, write the page."""
    chosen = cells(seed)
    with Board([cell.config for cell in chosen]) as board:
        models = train_models(chosen, workers, board.observe)
    _print_table(models)
    write_page(page, models, seed)
    say(f"accuracy by length, the automaton and eigenvalues: {page.resolve()}")


def _print_table(models: list[Trained]) -> None:
    """Accuracy at the training length and beyond, and the time to train."""
    columns = (f"{LENGTHS[0]} tokens", f"{LENGTHS[-1]:,}", "CPU time", "")
    title = f"products of permutations of three things, {models[0].states} states"
    table = Table("model", *columns, title=title, title_justify="left")
    for model in models:
        shares = (f"{model.accuracy[length]:.3f}" for length in (LENGTHS[0], LENGTHS[-1]))
        proved = "proved at every length" if model.proof is not None else ""
        table.add_row(model.label, *shares, f"{model.cpu_seconds:.0f} s", proved)
    make_console().print(table)
