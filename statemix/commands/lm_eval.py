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

    On stories, measure how often the last word is right, by number of events.

    Examples: `statemix lm eval runs/mine/final data/mine`,
    `statemix lm eval runs/mine/final held_out.txt --length 8192`,
    `statemix lm eval runs/mine/final stories:swaps --events 1 8 64`.
    """

    directory: tyro.conf.Positional[Path]
    """The model's directory: final/ of a run."""
    texts: tyro.conf.Positional[tuple[Path, ...]]
    """Text, JSON lines or Parquet files, or prepared directories, whose held-out text is used;
    or the name of stories, such as stories:swaps."""
    field: str = "text"
    """Name of the text field in JSON lines and Parquet."""
    length: int | None = None
    """Tokens of a chunk, read from a zero state; four times the training length if not given."""
    batch: int = 8
    """Number of chunks at a time."""
    events: tuple[int, ...] = ()
    """Numbers of events in stories; 0 1 2 4 8 16 32 64 if not given."""
    stories: int = 500
    """Number of stories for each number of events."""
    threads: int = 1
    """Number of threads that torch may use."""
    out: Path | None = None
    """Append the result to this file as a JSON line."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

    def run(self) -> None:
        check_positive("batch", self.batch)
        check_positive("threads", self.threads)
        check_positive("stories", self.stories)
        if any(count < 0 for count in self.events):
            raise SystemExit(f"statemix: --events must not be negative, got {min(self.events)}.")
        if self.length is not None:
            check_positive("length", self.length)
        if not self.texts:
            raise SystemExit("statemix: lm eval needs at least one text file.")
        import torch

        from statemix.commands.views.lm_eval import print_perplexity, print_stories
        from statemix.data.stories import PREFIX
        from statemix.runs.plugins import load_files

        torch.set_num_threads(self.threads)
        load_files(self.files)
        if any(str(text).startswith(PREFIX) for text in self.texts):
            names = tuple(map(str, self.texts))
            print_stories(self.directory, names, self.events, self.stories, self.batch, self.out)
            return
        print_perplexity(self.directory, self.texts, self.length, self.batch, self.out, self.field)
