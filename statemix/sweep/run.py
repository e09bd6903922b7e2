"""A sweep runs the cells of an experiment that the ledger lacks."""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.sweep.engines import ENGINES
from statemix.sweep.kinds import Config
from statemix.sweep.ledger import Ledger, commit, make_entry
from statemix.sweep.worker import Outcome, Workspace

__all__ = ["Observer", "SweepSummary", "sweep"]

# Receives a message of the engine, or ("done" | "failed" | "elsewhere", id, reason), or
# ("warning", "", text).
Observer = Callable[[str, str, Any], None]


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


def sweep(
    configs: Sequence[Config],
    ledger: Ledger,
    runs: Path,
    *,
    engine: str,
    workers: int,
    data: Path = Path("data"),
    files: tuple[Path, ...] = (),
    observe: Observer = lambda kind, id_, content: None,
) -> SweepSummary:
    """Run the cells that the ledger lacks, and append each to the ledger as it ends.

    A cell that another process runs is waited for, and run here if that process leaves no result.
    Language models read their prepared text under `data`. Worker processes import `files` first.
    """
    started = time.perf_counter()
    ledger.check_writable()
    commit()  # the commit that is about to run, even if files are edited meanwhile
    for warning in _warnings(ledger, configs):
        observe("warning", "", warning)
    done = ledger.done()
    missing = {config.id: config for config in configs if config.id not in done}
    counts = {"done": 0, "failed": 0, "elsewhere": 0}
    workspace = Workspace(ledger, runs, data, files)
    for kind, id_, content in ENGINES[engine](list(missing.values()), workspace, workers):
        observe(kind, id_, content)
        if kind == "end":
            status, reason = _record(ledger, missing[id_], content)
            counts[status] += 1
            observe(status, id_, reason)
    return SweepSummary(
        cells=len(configs),
        already_done=len(configs) - len(missing),
        missing=len({config.id for config in configs} - ledger.done()),
        seconds=time.perf_counter() - started,
        **counts,
    )


def _warnings(ledger: Ledger, configs: Sequence[Config]) -> list[str]:
    """What is wrong with lines of the ledger."""
    _, complaints = ledger.read()
    outdated = ledger.outdated(configs)
    if outdated:
        complaints.append(
            f"{', '.join(outdated)} changed since runs in {ledger.path} were made, which count as "
            "done. Delete their lines there, and their directories, to run them again."
        )
    return complaints


def _record(ledger: Ledger, config: Config, outcome: Outcome) -> tuple[str, str | None]:
    """Append a run that ended to the ledger; if that fails, its directory still has the result."""
    entry = make_entry(config, *outcome)
    try:
        kept = ledger.append(entry)
    except OSError as error:
        free = shutil.disk_usage(ledger.path.parent).free
        return "failed", (
            f"the ledger could not be written ({error.strerror}, {free >> 20} MiB free); "
            "run the sweep again"
        )
    if kept.status == "failed":
        return "failed", entry.reason
    return ("done" if kept is entry else "elsewhere"), None
