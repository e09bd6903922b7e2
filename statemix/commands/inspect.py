"""`statemix inspect`: a look inside a trained run."""

from dataclasses import dataclass
from pathlib import Path

import tyro

__all__ = ["Inspect"]


@dataclass(frozen=True)
class Inspect:
    """Show what a run is, how it went, and the eigenvalues of its trained transitions."""

    directory: tyro.conf.Positional[Path]
    """A run's directory."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers or tasks of your own."""

    def run(self) -> None:
        from statemix.commands.views.inspect import print_inspection
        from statemix.runs.plugins import load_files

        load_files(self.files)
        print_inspection(self.directory)
