"""What `statemix demo` prints: a live table while models train, then a table for each task."""

from pathlib import Path

from rich.table import Table
from rich.text import Text

from statemix.commands.views.board import Board
from statemix.commands.views.console import make_console, say
from statemix.demo import train_panels
from statemix.demo.cells import cells
from statemix.demo.page import Panel, write_page

__all__ = ["run_demo"]

_SOLVED = 0.999


def run_demo(page: Path, workers: int, seed: int) -> None:
    """Train every model, print the tables, write the page."""
    models = cells(seed)
    with Board([cell.config for cell in models]) as board:
        panels = train_panels(models, workers, board.observe)
    for task in dict.fromkeys(panel.task for panel in panels):
        _print_table(task, [panel for panel in panels if panel.task == task])
    write_page(page, panels)
    say(f"curves and eigenvalues: {page.resolve()}")


def _print_table(task: str, panels: list[Panel]) -> None:
    """States, and accuracy at the training length and beyond."""
    first = panels[0]
    lengths = (f"accuracy at {first.length} tokens", f"at {first.long_length}")
    table = Table("model", "states", *lengths, title=task, title_justify="left")
    for panel in panels:
        accuracies = (_marked(x) for x in (panel.accuracy, panel.long_accuracy))
        table.add_row(panel.label, str(panel.states), *accuracies)
    make_console().print(table)


def _marked(accuracy: float) -> Text:
    """Three digits, in green if the task is solved."""
    return Text(f"{accuracy:.3f}", style="bold green" if accuracy > _SOLVED else "")
