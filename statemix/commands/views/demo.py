"""What `statemix demo` prints: a live table while models train, then a table for each task."""

from pathlib import Path
from typing import Any

from rich.live import Live
from rich.table import Table
from rich.text import Text

from statemix.commands.views.console import make_console, say
from statemix.demo import train_panels
from statemix.demo.page import Panel, write_page
from statemix.sweep.run import Board
from statemix.train import RunConfig

__all__ = ["run_demo"]

_SOLVED = 0.999


def run_demo(page: Path, workers: int, seed: int) -> None:
    """Train every model, print the tables, write the page."""
    board = Board(0)
    console = make_console(stderr=True)
    with Live("", console=console, refresh_per_second=4, transient=True) as live:

        def observe(configs: dict[str, RunConfig], kind: str, id_: str, content: Any) -> None:
            board.total = len(configs)
            if kind == "epoch":
                board.running[id_] = content
            else:
                board.running.pop(id_, None)
                board.done += 1
            live.update(board.table(configs))

        panels = train_panels(seed, workers, observe)
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
