"""A sweep runs the cells of an experiment that the ledger lacks, and shows them in a live table."""

import shutil
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from statemix.sweep.engines import ENGINES
from statemix.sweep.ledger import Ledger, commit, make_entry
from statemix.sweep.worker import Outcome, Workspace
from statemix.train import RunConfig

__all__ = ["SweepSummary", "sweep"]

CONSOLE = Console(stderr=True)


@dataclass(frozen=True)
class SweepSummary:
    """How a sweep ended: how many cells it had, and where their results come from.

    `elsewhere` counts cells that another process finished meanwhile, `missing` all cells without
    a result, failed ones included.
    """

    cells: int
    already_done: int
    done: int
    failed: int
    elsewhere: int
    missing: int
    seconds: float


@dataclass
class Board:
    """The state of a sweep, as shown in the live table."""

    configs: dict[str, RunConfig]
    started: float = field(default_factory=time.perf_counter)
    running: dict[str, dict[str, Any]] = field(default_factory=dict)
    done: int = 0
    elsewhere: int = 0
    failed: list[str] = field(default_factory=list)

    def table(self) -> Group:
        """Counts, estimated time left, and a row for each cell that is running."""
        ended = self.done + self.elsewhere + len(self.failed)
        elapsed = time.perf_counter() - self.started
        left = "time left not known yet"
        if ended:
            left = f"{elapsed / ended * (len(self.configs) - ended):.0f} s left"
        head = (
            f"{ended} of {len(self.configs)} runs ended, {len(self.failed)} failed, "
            f"{elapsed:.0f} s, {left}"
        )
        table = Table(
            "run", "task", "mixer", "seed", "lr", "epoch", "training", "validation", box=None
        )
        for id_, report in self.running.items():
            config = self.configs[id_]
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


def sweep(
    configs: list[RunConfig],
    ledger: Ledger,
    runs: Path,
    *,
    engine: str,
    workers: int,
    files: tuple[Path, ...] = (),
) -> SweepSummary:
    """Run the cells that the ledger lacks, and append each to the ledger as it ends.

    A cell that another process runs is waited for, and run here if that process leaves no result.
    Worker processes import `files` first.
    """
    ledger.check_writable()
    commit()  # the commit that is about to run, even if files are edited meanwhile
    _warn(ledger, configs)
    done = ledger.done()
    missing = [config for config in configs if config.id not in done]
    board = Board({config.id: config for config in missing})
    if missing:
        with Live(board.table(), console=CONSOLE, refresh_per_second=4, transient=True) as live:
            for kind, id_, content in ENGINES[engine](
                missing, Workspace(ledger, runs, files), workers
            ):
                if kind == "epoch":
                    board.running[id_] = content
                elif kind == "busy":
                    CONSOLE.print(f"another process runs {id_}: waiting for it", markup=False)
                else:
                    _record(board, ledger, board.configs[id_], content)
                live.update(board.table())
    for failure in board.failed:
        CONSOLE.print(f"failed: {failure}", markup=False, style="red")
    return SweepSummary(
        len(configs),
        len(configs) - len(missing),
        board.done,
        len(board.failed),
        board.elsewhere,
        len({config.id for config in configs} - ledger.done()),
        time.perf_counter() - board.started,
    )


def _warn(ledger: Ledger, configs: list[RunConfig]) -> None:
    """Print what is wrong with lines of the ledger."""
    _, complaints = ledger.read()
    outdated = ledger.outdated(configs)
    if outdated:
        complaints.append(
            f"{', '.join(outdated)} changed since runs in {ledger.path} were made, which count as "
            "done. Delete their lines there, and their directories, to run them again."
        )
    for complaint in complaints:
        CONSOLE.print(complaint, markup=False, style="yellow")


def _record(board: Board, ledger: Ledger, config: RunConfig, outcome: Outcome) -> None:
    """Append a run that ended to the ledger; if that fails, its directory still has the result."""
    board.running.pop(config.id, None)
    entry = make_entry(config, *outcome)
    reason = entry.reason
    try:
        kept = ledger.append(entry)
    except OSError as error:
        free = shutil.disk_usage(ledger.path.parent).free
        reason = (
            f"the ledger could not be written ({error.strerror}, {free >> 20} MiB free); "
            "run the sweep again"
        )
        kept = replace(entry, status="failed")
    if kept.status == "failed":
        board.failed.append(
            f"{config.id} ({config.task}, {config.model.mixer}, seed {config.seed}): {reason}"
        )
    elif kept is entry:
        board.done += 1
    else:
        board.elsewhere += 1
