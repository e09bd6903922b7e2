"""`statemix sweep`: the runs of an experiment that are not done yet."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from statemix.commands.check import check_positive


@dataclass(frozen=True)
class Sweep:
    """Run what the ledger lacks of an experiment: a Python file whose `cells()` yields configs.

    A run that fails or is killed is written down with its reason, and costs no other. Run the command again to go on.
    A part of a table: `statemix sweep experiments/table_groups.py --rows 'BD-LRU m[1-5]' LSTM --columns S3-250 --scale paper`.
    """

    experiment: tyro.conf.Positional[Path]
    """The Python file."""
    scale: Literal["laptop", "paper"] = "laptop"
    """Sizes that a CPU can run, or those of the paper, where the experiment offers both."""
    rows: tuple[str, ...] = ()
    """Only these rows of the table or figure, as patterns: 'BD-LRU m[1-5]' LSTM."""
    columns: tuple[str, ...] = ()
    """Only these columns: 'S3-*'."""
    variants: tuple[str, ...] = ()
    """Only these recipes: plain."""
    ledger: Path = Path("results/ledger.jsonl")
    """Where finished runs are written down."""
    runs: Path = Path("runs")
    """Where runs keep their checkpoints meanwhile."""
    engine: Literal["local", "ray"] = "local"
    """local: processes on this machine. ray: the Ray cluster that is there, or a local one."""
    workers: int = os.cpu_count() or 1
    """Runs at a time, one thread each."""
    job_idx: int = 0
    """Which share of the cells to run, for job arrays."""
    num_jobs: int = 1
    """Into how many shares the cells are divided."""
    limit: int | None = None
    """Run at most so many cells, the first that are missing; experiments list first what tells most."""
    dry_run: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Only tell what would be run."""

    def run(self) -> None:
        check_positive("workers", self.workers)
        check_positive("num_jobs", self.num_jobs)
        if not 0 <= self.job_idx < self.num_jobs:
            raise SystemExit(
                f"statemix: --job-idx must be in 0 .. {self.num_jobs - 1}, got {self.job_idx}."
            )
        from statemix.commands.views.sweep import Selection, run_sweep
        from statemix.sweep.plan import Where

        if self.limit is not None:
            check_positive("limit", self.limit)
        where = Where(self.rows, self.columns, self.variants)
        choice = Selection(self.scale, self.job_idx, self.num_jobs, self.limit, where)
        run_sweep(
            self.experiment,
            choice,
            self.ledger,
            self.runs,
            self.engine,
            self.workers,
            dry_run=self.dry_run,
        )
