"""A sweep: the cells of an experiment that the ledger lacks, with a table that lives while they run."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from statemix.sweep.engines import ENGINES
from statemix.sweep.ledger import Ledger, commit, make_entry
from statemix.train import RunConfig

CONSOLE = Console(stderr=True)


@dataclass(frozen=True)
class SweepSummary:
    """How a sweep ended; runs that are `left` another process was at."""

    cells: int
    already_done: int
    done: int
    failed: int
    left: int
    seconds: float


@dataclass
class Board:
    """What the live table shows."""

    total: int
    started: float = field(default_factory=time.perf_counter)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    done: int = 0
    left: int = 0
    failed: list[str] = field(default_factory=list)

    def table(self, configs: dict[str, RunConfig]) -> Group:
        """Counts, time left, and the runs at work."""
        ended, elapsed = (
            self.done + self.left + len(self.failed),
            time.perf_counter() - self.started,
        )
        left = (
            f"{elapsed / ended * (self.total - ended):.0f} s left"
            if ended
            else "time left not known yet"
        )
        head = f"{ended} of {self.total} runs ended, {len(self.failed)} failed, {elapsed:.0f} s, {left}"
        table = Table(
            "run", "task", "mixer", "seed", "lr", "epoch", "training", "validation", box=None
        )
        for id_, report in self.running.items():
            config = configs[id_]
            options = " ".join(f"{key}={value}" for key, value in config.model.options.items())
            accuracy = (f"{report[key]:.3f}" for key in ("train", "validation"))
            table.add_row(
                id_[:8],
                config.task,
                f"{config.model.mixer} {options}",
                str(config.seed),
                f"{config.lr:g}",
                str(report["epoch"]),
                *accuracy,
            )
        return Group(head, table)


@contextmanager
def live_table(board: Board, configs: dict[str, RunConfig]) -> Iterator[Live]:
    with Live(board.table(configs), console=CONSOLE, refresh_per_second=4, transient=True) as live:
        yield live


def sweep(
    configs: list[RunConfig],
    ledger: Ledger,
    runs: Path,
    *,
    engine: str,
    workers: int,
    files: tuple[Path, ...] = (),
) -> SweepSummary:
    """Run what the ledger lacks; write each run down as it ends.  Processes that run them import `files` first."""
    ledger.check_writable()
    commit()  # of what is about to run, whatever is edited meanwhile
    _, complaints = ledger.read()
    for complaint in complaints:
        CONSOLE.print(complaint, markup=False, style="yellow")
    outdated = ledger.outdated(configs)
    if outdated:
        CONSOLE.print(
            f"{', '.join(outdated)} changed since runs in {ledger.path} were made, which count as done. "
            "Delete their lines there, and their directories, to run them again.",
            markup=False,
            style="yellow",
        )
    finished = ledger.done()
    missing = [config for config in configs if config.id not in finished]
    by_id, board = {config.id: config for config in missing}, Board(len(missing))
    if missing:
        with live_table(board, by_id) as live:
            for kind, id_, content in ENGINES[engine](missing, runs, workers, files):
                if kind == "epoch":
                    board.running[id_] = content
                else:
                    record(board, ledger, by_id[id_], *content)
                live.update(board.table(by_id))
    for failure in board.failed:
        CONSOLE.print(f"failed: {failure}", markup=False, style="red")
    already_done, seconds = len(configs) - len(missing), time.perf_counter() - board.started
    return SweepSummary(
        len(configs), already_done, board.done, len(board.failed), board.left, seconds
    )


def record(
    board: Board,
    ledger: Ledger,
    config: RunConfig,
    result: dict[str, Any] | None,
    reason: str | None,
) -> None:
    """Write a run that ended into the ledger; where that fails, its result is still in its own directory.

    A run without result and reason is another process's, which will write it down.
    """
    board.running.pop(config.id, None)
    if result is None and reason is None:
        board.left += 1
        return
    try:
        ledger.append(make_entry(config, result, reason))
    except OSError as error:
        free = shutil.disk_usage(ledger.path.parent).free
        reason = f"the ledger could not be written ({error.strerror}, {free >> 20} MiB free); run the sweep again"
        result = None
    if result is None:
        board.failed.append(
            f"{config.id} ({config.task}, {config.model.mixer}, seed {config.seed}): {reason}"
        )
    else:
        board.done += 1
