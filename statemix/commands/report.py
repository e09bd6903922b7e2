"""`statemix report`: the paper's tables and figures, from the ledger."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Report:
    """Render every table and figure from the ledger, with the paper's values beside ours, and one page to explore them.

    Nothing is trained: `statemix sweep experiments/table_groups.py` and its like fill the ledger.
    """

    out: Path = Path("report")
    """Where tables (Markdown, LaTeX, CSV), figures (SVG, PDF) and index.html go."""
    ledger: Path = Path("results/ledger.jsonl")
    """What has been run."""
    experiments: Path = Path("experiments")
    """The experiments whose cells are reported."""
    bench: Path = Path("results/bench")
    """Results of `statemix bench`, for the figure of throughput."""
    documents: tuple[Path, ...] = ()
    """Instead, render the tables inside these Markdown files anew, between `<!-- name -->` and `<!-- end -->`."""
    coverage: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Write nothing; print how many of the paper's values have a measured neighbour, and how many agree."""

    def run(self) -> None:
        from statemix.commands.views.report import print_coverage, update_documents, write_report

        if self.coverage:
            print_coverage(self.experiments, self.ledger)
        elif self.documents:
            update_documents(self.experiments, self.ledger, self.documents)
        else:
            write_report(self.experiments, self.ledger, self.bench, self.out)
