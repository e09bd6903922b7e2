"""`statemix lm ngram`: an n-gram model as a baseline."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["NGram"]


@dataclass(frozen=True)
class NGram:
    """Train a Kneser–Ney model on prepared text, and print its held-out perplexity."""

    data: tyro.conf.Positional[Path]
    """A directory that `statemix lm prepare` wrote."""
    order: int = 5
    """Number of tokens of an n-gram."""
    bytes: bool = False
    """Use n-grams of bytes instead of tokens."""

    def run(self) -> None:
        check_positive("order", self.order)
        from statemix.commands.views.lm_ngram import print_ngram

        print_ngram(self.data, self.order, of_bytes=self.bytes)
