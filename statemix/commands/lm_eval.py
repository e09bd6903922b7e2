"""`statemix lm eval`: perplexity of a trained language model."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["LMEval"]


@dataclass(frozen=True)
class LMEval:
    """Measure perplexity on texts by position, also beyond the training length, and bits per byte.

    Unlike the validation during training, this does not score the ends of documents, so its bits
    per byte are slightly lower.

    Examples: `statemix lm eval runs/mine/final data/mine`,
    `statemix lm eval runs/mine/final held_out.txt --length 8192`.
    """

    directory: tyro.conf.Positional[Path]
    """The model's directory: final/ of a run."""
    texts: tyro.conf.Positional[tuple[Path, ...]]
    """Text, JSON lines or Parquet files, or prepared directories, whose held-out text is used."""
    field: str = "text"
    """Name of the text field in JSON lines and Parquet."""
    length: int | None = None
    """Tokens of a chunk, read from a zero state; four times the training length if not given."""
    batch: int = 8
    """Number of chunks at a time."""
    threads: int = 1
    """Number of threads that torch may use."""
    out: Path | None = None
    """Append the result to this file as a JSON line."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

    def run(self) -> None:
        check_positive("batch", self.batch)
        check_positive("threads", self.threads)
        if self.length is not None:
            check_positive("length", self.length)
        if not self.texts:
            raise SystemExit("statemix: lm eval needs at least one text file.")
        import torch

        from statemix.commands.views.lm_eval import print_perplexity
        from statemix.runs.plugins import load_files

        torch.set_num_threads(self.threads)
        load_files(self.files)
        print_perplexity(self.directory, self.texts, self.length, self.batch, self.out, self.field)
