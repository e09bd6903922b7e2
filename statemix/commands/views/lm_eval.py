"""What `statemix lm eval` prints: perplexity by position and bits per byte, or story accuracy."""

import json
import math
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn
from rich.table import Table

from statemix.commands.views.console import make_console, make_progress, say
from statemix.data.stories import read_stories
from statemix.lm.evaluate import Perplexity, measure_perplexity
from statemix.lm.saved import SavedModel, load_model
from statemix.lm.stories import EVENTS, measure_stories
from statemix.lm.text import read_text
from statemix.lm.tokenizer import open_tokenizer

__all__ = ["measure_texts", "print_perplexity", "print_stories"]


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


def print_stories(
    directory: Path,
    names: tuple[str, ...],
    events: tuple[int, ...],
    stories: int,
    batch: int,
    out: Path | None,
) -> None:
    """A table of the accuracy on stories: a row for each kind, a column for each number."""
    configs = {name: read_stories(name) for name in names}
    counts = events or EVENTS
    saved = load_model(directory)
    tokenizer, end = open_tokenizer(saved)
    table = Table("events", *map(str, counts), title=str(directory), title_justify="left")
    for name, config in configs.items():
        missing = set(config.world.words()) - set(tokenizer.get_vocab())
        if missing:
            raise ValueError(
                f"The tokenizer of {directory} lacks the word {min(missing)!r} of {name}. "
                "Use a model that was trained on such stories."
            )
        measured = measure_stories(
            saved.model, tokenizer, end, config, events=counts, stories=stories, batch=batch
        )
        table.add_row(name, *(f"{each.accuracy:.3f}" for each in measured))
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            line = {"model": str(directory), "stories": name, "number": stories}
            line |= {"accuracy": {each.events: each.accuracy for each in measured}}
            with out.open("a") as file:
                file.write(json.dumps(line) + "\n")
    make_console().print(table)


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
