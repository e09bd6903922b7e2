"""`statemix demo`: small models that show what mixing buys."""

import os
from dataclasses import dataclass
from pathlib import Path

from statemix.commands.check import check_positive

__all__ = ["Demo"]


@dataclass(frozen=True)
class Demo:
    """Train six small models of one task; print a table, and write a page with figures."""

    page: Path = Path("demo.html")
    """The page to write: accuracy by length, a proof with its automaton, and eigenvalues."""
    workers: int = os.cpu_count() or 1
    """Number of models to train at a time, with one thread each."""
    seed: int = 0
    """Seed of all random numbers."""

    def run(self) -> None:
        check_positive("workers", self.workers)
        from statemix.commands.views.demo import run_demo

        run_demo(self.page, self.workers, self.seed)
