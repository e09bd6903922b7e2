"""`statemix report`: the paper's tables and figures, from the ledger."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

__all__ = ["Report"]


@dataclass(frozen=True)
class Report:
    """Render all tables and figures from the ledger, next to the paper's values, and a page.

    Nothing is trained: `statemix sweep experiments/table_groups.py`, for example, fills the ledger.
    """

    out: Path = Path("report")
    """Directory for tables (Markdown, LaTeX, CSV), figures (SVG, PDF) and index.html."""
    ledger: Path = Path("results/ledger.jsonl")
    """The results of finished runs."""
    experiments: Path | None = None
    """Directory of the experiments to report (default: ./experiments if it exists, else the paper's
    experiments, which are installed with statemix)."""
    bench: Path = Path("results/bench")
    """Directory of the results of `statemix bench`, for the figure of throughput."""
    documents: tuple[Path, ...] = ()
    """Instead, update the tables inside these Markdown files, below `<!-- name -->` comments."""
    coverage: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write nothing; print how many values are measured, agree, and rest on how many seeds."""

    def run(self) -> None:
        from statemix.commands.views.report import (
            find_experiments,
            print_coverage,
            update_documents,
            write_report,
        )

        experiments = self.experiments or find_experiments()
        if self.coverage:
            print_coverage(experiments, self.ledger)
        elif self.documents:
            update_documents(experiments, self.ledger, self.documents)
        else:
            write_report(experiments, self.ledger, self.bench, self.out)
