"""`statemix inspect`: the config, training curve and eigenvalues of a trained run."""

from dataclasses import dataclass
from pathlib import Path

import tyro

__all__ = ["Inspect"]


@dataclass(frozen=True)
class Inspect:
    """Show the config of a run, its training curve, and the eigenvalues of its transitions."""

    directory: tyro.conf.Positional[Path]
    """The run's directory."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers or tasks."""

    def run(self) -> None:
        from statemix.commands.views.inspect import print_inspection
        from statemix.runs.plugins import load_files

        load_files(self.files)
        print_inspection(self.directory)
