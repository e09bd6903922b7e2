"""What `statemix lm eval` prints: perplexity by position, and bits per byte."""

import json
import math
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from statemix.commands.views.console import make_console, make_progress, say
from statemix.lm.evaluate import Perplexity, measure_perplexity
from statemix.lm.saved import SavedModel, load_model
from statemix.lm.text import read_text
from statemix.lm.tokenizer import open_tokenizer

__all__ = ["measure_texts", "print_perplexity"]


def print_perplexity(
    directory: Path,
    texts: tuple[Path, ...],
    length: int | None,
    batch: int,
    out: Path | None,
    field: str = "text",
) -> None:
    """A table of perplexities by position; positions beyond the training length are marked."""
    saved = load_model(directory)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    trained = int(saved.about.get("train_length", 0))
    length = length or (4 * trained or 2048)
    result = measure_texts(saved, texts, length, batch, field)
    table = Table("positions", "tokens", "perplexity", "", title=str(directory))
    table.title_justify = "left"
    for first, last in result.spans():
        table.add_row(
            f"{first}–{last - 1}",
            f"{int(result.counts[first:last].sum()):,}",
            f"{result.between(first, last):.2f}",
            "beyond the training length" if trained and first >= trained else "",
        )
    make_console().print(table)
    _print_summary(result, trained, length)
    if out is not None:
        line = _line_of(directory, texts, length, trained, result)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


def measure_texts(
    saved: SavedModel, paths: tuple[Path, ...], length: int, batch: int, field: str = "text"
) -> Perplexity:
    """Perplexity of several texts together, with a progress bar."""
    tokenizer, end = open_tokenizer(saved)
    texts = [read_text(path, saved, tokenizer, field) for path in paths]
    documents = [document for text in texts for document in text.documents]
    with make_progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        bar = progress.add_task("tokens", total=sum(len(document) for document in documents))
        return measure_perplexity(
            saved.model,
            documents,
            sum(text.bytes for text in texts),
            start=end,
            length=length,
            batch=batch,
            observe=lambda n: progress.advance(bar, n),
        )


def _print_summary(result: Perplexity, trained: int, length: int) -> None:
    """All positions together, and those within and beyond the training length."""
    say(
        f"all: perplexity {result.between(0, length):.3f}, "
        f"{result.bits_per_byte:.4f} bits per byte of {result.bytes:,}"
    )
    if 0 < trained < length:
        within = result.between(0, trained)
        beyond = result.between(trained, length)
        measured = "no text is as long" if math.isnan(beyond) else f"perplexity {beyond:.3f}"
        say(
            f"within the training length of {trained}: perplexity {within:.3f}; "
            f"beyond it: {measured}"
        )


def _line_of(
    directory: Path, texts: tuple[Path, ...], length: int, trained: int, result: Perplexity
) -> dict[str, Any]:
    """The measurement as a line of a JSON lines file."""
    return {
        "model": str(directory),
        "texts": [str(path) for path in texts],
        "length": length,
        "train_length": trained,
        "perplexity": result.between(0, length),
        "bits_per_byte": result.bits_per_byte,
        "spans": [
            {"first": a, "last": b - 1, "perplexity": result.between(a, b)}
            for a, b in result.spans()
        ],
    }
