"""`statemix eval`: accuracy of a trained run at other lengths."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["Eval"]


@dataclass(frozen=True)
class Eval:
    """Measure a trained run at other lengths, far beyond those it was trained at, and by position."""

    directory: tyro.conf.Positional[Path]
    """A run's directory, as `statemix train` printed it."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    """Lengths of fresh test sequences."""
    examples: int = 256
    """Sequences of each length."""
    seed: int = 1_000
    """Of the fresh sequences."""
    out: Path | None = None
    """Append accuracies to this file as JSON lines, by position too."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers or tasks of your own."""

    def run(self) -> None:
        check_positive("examples", self.examples)
        check_positive("lengths", self.lengths)
        from statemix.commands.views.eval import print_evaluation
        from statemix.runs.plugins import load_files

        load_files(self.files)
        print_evaluation(self.directory, self.lengths, self.examples, self.seed, self.out)
