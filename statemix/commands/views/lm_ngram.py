"""What `statemix lm ngram` prints: the perplexity of a Kneser–Ney model."""

from pathlib import Path

from rich.table import Table

from statemix.commands.views.console import make_console
from statemix.data import open_data
from statemix.lm.ngram import NGramResult, measure_ngram

__all__ = ["add_ngram", "make_table", "print_ngram"]


def print_ngram(directory: Path, order: int, *, of_bytes: bool) -> None:
    """Train an n-gram model and print its held-out perplexity."""
    table = make_table()
    add_ngram(table, measure_ngram(open_data(directory), order, of_bytes=of_bytes))
    make_console().print(table)


def make_table(title: str | None = None) -> Table:
    """An empty table of held-out perplexities."""
    return Table("held-out text", "perplexity", "bits per byte", title=title, title_justify="left")


def add_ngram(table: Table, result: NGramResult) -> None:
    """Add the row of an n-gram model."""
    name = f"Kneser–Ney of order {result.order} over {'bytes' if result.of_bytes else 'tokens'}"
    table.add_row(name, f"{result.perplexity:.3f}", f"{result.bits_per_byte:.4f}")
