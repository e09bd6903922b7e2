"""`statemix sweep`: run the cells of an experiment that the ledger lacks."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from statemix.commands.check import check_positive

__all__ = ["Sweep"]


@dataclass(frozen=True)
class Sweep:
    """Run the cells of an experiment, a Python file whose `cells()` yields configs.

    Cells with a result in the ledger are not run again. A failed run is recorded with its reason,
    and the others continue. Run the same command again to resume.
    Example, a part of a table: `statemix sweep experiments/table_groups.py
    --rows 'BD-LRU m[1-5]' LSTM --columns S3-250 --scale paper`.
    """

    experiment: tyro.conf.Positional[Path]
    """The Python file of the experiment."""
    scale: Literal["laptop", "paper"] = "laptop"
    """Sizes that a CPU can run, or those of the paper, if the experiment offers both."""
    rows: tuple[str, ...] = ()
    """Run only these rows of the table or figure, given as patterns: 'BD-LRU m[1-5]' LSTM."""
    columns: tuple[str, ...] = ()
    """Run only these columns: 'S3-*'."""
    recipes: tuple[str, ...] = ()
    """Run only these recipes: plain."""
    protocol: Literal["own", "paper"] = "own"
    """own: each cell's protocol. paper: select on the test set, without BOS token and aids."""
    ledger: Path = Path("results/ledger.jsonl")
    """The file that results are appended to."""
    runs: Path = Path("runs")
    """Directory of all runs; a run has a subdirectory named by its id."""
    data: Path = Path("data")
    """Directory of the prepared texts that language models read."""
    engine: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: a running Ray cluster, or a local one."""
    workers: int = os.cpu_count() or 1
    """Number of runs at a time, with one thread each."""
    job_idx: int = 0
    """Index of this job in a job array, which runs a share of the cells."""
    num_jobs: int = 1
    """Number of jobs in the array."""
    limit: int | None = None
    """Run at most this many of the missing cells, the first ones of the experiment."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the cells that would be run, and run none."""

    def run(self) -> None:
        check_positive("workers", self.workers)
        check_positive("num_jobs", self.num_jobs)
        if not 0 <= self.job_idx < self.num_jobs:
            raise SystemExit(
                f"statemix: --job-idx must be in 0 .. {self.num_jobs - 1}, got {self.job_idx}."
            )
        if self.limit is not None:
            check_positive("limit", self.limit)
        from statemix.commands.views.sweep import print_plan, run_sweep, select
        from statemix.sweep import Ledger
        from statemix.sweep.plan import Where, by_the_papers_protocol, load_cells, share
        from statemix.sweep.worker import Workspace

        where = Where(self.rows, self.columns, self.recipes)
        cells = load_cells(self.experiment, self.scale, where)
        if self.protocol == "paper":
            cells = by_the_papers_protocol(cells)
        cells = share(cells, self.job_idx, self.num_jobs)
        ledger = Ledger(self.ledger)
        configs = select(cells, ledger, self.limit)
        if self.dry_run:
            print_plan(configs, ledger)
            return
        files = (self.experiment.resolve(),)
        workspace = Workspace(ledger, self.runs, self.data, files)
        run_sweep(configs, workspace, self.engine, self.workers)
