"""`statemix lm eval`: perplexity of a trained language model."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["LMEval"]


@dataclass(frozen=True)
class LMEval:
    """Measure perplexity on texts by position, far beyond the training length, and bits per byte.

    The tokens of the texts are counted, not their ends, which training's own validation predicts too: its bits per byte are a little more.

    Examples: `statemix lm eval runs/mine/final data/mine`, `statemix lm eval runs/mine/final held_out.txt --length 8192`.
    """

    directory: tyro.conf.Positional[Path]
    """A model's directory, as training leaves it in final/."""
    texts: tyro.conf.Positional[tuple[Path, ...]]
    """Files of text, JSON lines or Parquet, or directories that `statemix lm prepare` wrote, whose held-out documents are taken."""
    field: str = "text"
    """What the text is called in JSON lines and Parquet."""
    length: int | None = None
    """Tokens of a stretch, each read from a fresh state; four times the training length if not given."""
    batch: int = 8
    """Stretches at a time."""
    threads: int = 1
    """Threads torch may use."""
    out: Path | None = None
    """Append what was measured to this file as a JSON line."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register mixers of your own."""

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
