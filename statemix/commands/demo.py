"""`statemix demo`: in minutes, what mixing buys that width cannot."""

import os
from dataclasses import dataclass
from pathlib import Path

from statemix.commands.check import check_positive


@dataclass(frozen=True)
class Demo:
    """Train ten small models on two tasks; print a table, and write a page with curves and eigenvalues."""

    page: Path = Path("demo.html")
    """The page to write: one file, no network needed."""
    workers: int = os.cpu_count() or 1
    """Models trained at a time, one thread each."""
    seed: int = 0
    """Everything random follows from it."""

    def run(self) -> None:
        check_positive("workers", self.workers)
        from statemix.commands.views.demo import run_demo

        run_demo(self.page, self.workers, self.seed)
