"""In minutes, on a laptop: what mixing buys that width cannot."""

import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.table import Table

from statemix.analysis.inspect import collect_eigenvalues
from statemix.demo.cells import DemoCell, cells
from statemix.demo.page import Panel, write_page
from statemix.sweep.engines import run_locally
from statemix.sweep.ledger import Ledger
from statemix.sweep.run import Board
from statemix.sweep.worker import Workspace
from statemix.train.command import load_trained
from statemix.train.metrics import measure_accuracy

LONG = {"s3": 100, "cycle_nav": 100}
TITLES = {"s3": "products of permutations of three things", "cycle_nav": "walks on a cycle of five"}


def run_demo(page: Path, workers: int, seed: int) -> None:
    """Train every model, print the table, write the page."""
    models = cells(seed)
    with tempfile.TemporaryDirectory() as folder:
        curves = train_all(models, Path(folder), workers)
        panels = [look_at(cell, Path(folder), curves.get(cell.config.id, [])) for cell in models]
    print_table(panels)
    write_page(page, panels)
    Console().print(f"curves and eigenvalues: {page.resolve()}", markup=False)


def train_all(
    models: list[DemoCell], folder: Path, workers: int
) -> dict[str, list[tuple[int, float]]]:
    """Validation accuracy after every epoch, for each run."""
    configs = {cell.config.id: cell.config for cell in models}
    board = Board(configs)
    workspace = Workspace(Ledger(folder / "ledger.jsonl"), folder)
    curves: dict[str, list[tuple[int, float]]] = {}
    with Live(
        board.table(), console=Console(stderr=True), refresh_per_second=4, transient=True
    ) as live:
        for kind, id_, content in run_locally(list(configs.values()), workspace, workers):
            if kind == "epoch":
                board.running[id_] = content
                curves.setdefault(id_, []).append((content["step"], content["validation"]))
            else:
                board.running.pop(id_, None)
                result, reason = content
                if result is None:
                    raise RuntimeError(f"The demo's run {id_} failed: {reason}")
                board.done += 1
            live.update(board.table())
    return curves


def look_at(cell: DemoCell, folder: Path, curve: list[tuple[int, float]]) -> Panel:
    """A trained model on longer sequences, and its eigenvalues."""
    config, task, model = load_trained(folder / cell.config.id)
    length = config.length or task.length
    short, long = (
        measure_accuracy(model, task.examples(1000, T, np.random.default_rng([7, T])), task.classes)
        for T in (length, LONG[config.task])
    )
    spectrum = collect_eigenvalues(model, task, length, count=16)
    points = spectrum[0].flatten().numpy() if spectrum else np.empty(0, dtype=complex)
    return Panel(
        TITLES[config.task],
        cell.label,
        cell.states,
        length,
        short.token,
        LONG[config.task],
        long.token,
        curve,
        points,
    )


def print_table(panels: list[Panel]) -> None:
    """One table a task: states, and accuracy at the training length and beyond."""
    for task in dict.fromkeys(panel.task for panel in panels):
        own = [panel for panel in panels if panel.task == task]
        table = Table(
            "model",
            "states",
            f"accuracy at {own[0].length} tokens",
            f"at {own[0].long_length}",
            title=task,
            title_justify="left",
        )
        for panel in own:
            table.add_row(
                panel.label,
                str(panel.states),
                *(marked(accuracy) for accuracy in (panel.accuracy, panel.long_accuracy)),
            )
        Console().print(table)


def marked(accuracy: float) -> str:
    """Three digits, in green where the task is solved."""
    return f"[bold green]{accuracy:.3f}[/]" if accuracy > 0.999 else f"{accuracy:.3f}"
