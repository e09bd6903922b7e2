"""`statemix eval`: accuracy of a trained run at other lengths."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["Eval"]


@dataclass(frozen=True)
class Eval:
    """Measure the accuracy of a trained run at other lengths, also beyond the training length."""

    directory: tyro.conf.Positional[Path]
    """The run's directory, as printed by `statemix train`."""
    lengths: tuple[int, ...] = (16, 64, 256, 1024)
    """Lengths of the test sequences."""
    examples: int = 256
    """Number of sequences of each length."""
    seed: int = 1_000
    """Seed of the test sequences."""
    out: Path | None = None
    """Append the accuracies to this file as JSON lines, also by position."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers or tasks."""

    def run(self) -> None:
        check_positive("examples", self.examples)
        check_positive("lengths", self.lengths)
        from statemix.commands.views.eval import print_evaluation
        from statemix.runs.plugins import load_files

        load_files(self.files)
        print_evaluation(self.directory, self.lengths, self.examples, self.seed, self.out)
