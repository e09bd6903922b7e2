"""What `statemix lm presets`, `generate` and `eval` print."""

import json
import math
import sys
import time
from itertools import groupby
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from statemix.layers import build_mixer
from statemix.lm.checkpoint import SavedModel, load_model
from statemix.lm.evaluate import Perplexity, measure_perplexity
from statemix.lm.generate import Sampling, generate_tokens
from statemix.lm.text import read_text
from statemix.lm.tokenizer import open_tokenizer
from statemix.models.lm import count_parameters
from statemix.models.presets import PRESETS


def print_presets() -> None:
    """Every preset with what it costs, in one table for each size."""
    console = Console()
    for size, names in groupby(PRESETS, lambda name: name.partition("-")[0]):
        table = Table(
            "preset",
            *(Column(title, justify="right") for title in ("parameters", "states a layer")),
            "options",
            box=SIMPLE,
        )
        for name in names:
            config = PRESETS[name]
            with torch.device("meta"):
                states = build_mixer(config.mixer, config.width, config.options).state_size
            options = ", ".join(f"{key}={value}" for key, value in config.options.items())
            table.add_row(name, f"{count_parameters(config):,}", f"{states:,}", options)
        table.title = f"{size.upper()}: width {config.width}, {config.layers} layers, MLP {config.mlp_width}, vocabulary {config.vocab:,}"
        console.print(table)


def print_generated(
    directory: Path, prompt: str, tokens: int, sampling: Sampling, *, stop_at_end: bool
) -> None:
    """Stream text to the terminal as it comes, and tell the speed."""
    from tokenizers.decoders import DecodeStream

    saved = load_model(directory)
    tokenizer, end = open_tokenizer(saved)
    own = tokenizer.encode(checked(prompt), add_special_tokens=False).ids
    ids = [end, *own]
    stream = DecodeStream(
        own, skip_special_tokens=False
    )  # it knows the prompt: some tokenizers put a space between words only
    count, started = 0, time.perf_counter()
    sys.stdout.write(prompt)
    try:
        for token in generate_tokens(
            saved.model,
            torch.tensor(ids, dtype=torch.long),
            tokens,
            sampling,
            end if stop_at_end else None,
        ):
            sys.stdout.write(stream.step(tokenizer, token) or "")
            sys.stdout.flush()
            count += 1
    except KeyboardInterrupt:
        pass
    seconds = time.perf_counter() - started
    sys.stdout.write("\n")
    Console(stderr=True).print(
        f"{count} tokens, {count / seconds:,.0f} a second, {saved.model.state_size:,} numbers of state",
        style="dim",
    )


def checked(prompt: str) -> str:
    """The prompt, which must be text; bytes of a command line that are none come as halves of characters."""
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"The prompt must be UTF-8 text: character {error.start} is none. Type it anew."
        ) from error
    return prompt


def print_perplexity(
    directory: Path,
    texts: tuple[Path, ...],
    length: int | None,
    batch: int,
    out: Path | None,
    field: str = "text",
) -> None:
    """A table of perplexities by position, with those beyond the training length marked."""
    saved = load_model(directory)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    trained = int(saved.about.get("train_length", 0))
    length = length or (4 * trained or 2048)
    result = measure_texts(saved, texts, length, batch, field)
    table = Table(
        "positions", "tokens", "perplexity", "", title=f"{directory}", title_justify="left"
    )
    for first, last in result.stretches():
        mark = "beyond the training length" if trained and first >= trained else ""
        table.add_row(
            f"{first}–{last - 1}",
            f"{int(result.counts[first:last].sum()):,}",
            f"{result.between(first, last):.2f}",
            mark,
        )
    console = Console()
    console.print(table)
    print_summary(console, result, trained, length)
    if out is not None:
        write_line(out, directory, texts, length, trained, result)


def measure_texts(
    saved: SavedModel, paths: tuple[Path, ...], length: int, batch: int, field: str = "text"
) -> Perplexity:
    """Perplexity of several texts together."""
    tokenizer, end = open_tokenizer(saved)
    texts = [read_text(path, saved, tokenizer, field) for path in paths]
    documents = [document for text in texts for document in text.documents]
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
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


def print_summary(console: Console, result: Perplexity, trained: int, length: int) -> None:
    """All positions together, and before and after the training length."""
    console.print(
        f"all: perplexity {result.between(0, length):.3f}, {result.bits_per_byte:.4f} bits per byte of {result.bytes:,}",
        soft_wrap=True,
    )
    if 0 < trained < length:
        before, after = result.between(0, trained), result.between(trained, length)
        told = "no text is as long" if math.isnan(after) else f"perplexity {after:.3f}"
        console.print(
            f"within the training length of {trained}: perplexity {before:.3f}; beyond it: {told}",
            soft_wrap=True,
        )


def write_line(
    out: Path,
    directory: Path,
    texts: tuple[Path, ...],
    length: int,
    trained: int,
    result: Perplexity,
) -> None:
    """Append what was measured to a file of JSON lines."""
    line = {
        "model": str(directory),
        "texts": [str(path) for path in texts],
        "length": length,
        "train_length": trained,
        "perplexity": result.between(0, length),
        "bits_per_byte": result.bits_per_byte,
        "stretches": [
            {"first": a, "last": b - 1, "perplexity": result.between(a, b)}
            for a, b in result.stretches()
        ],
    }
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")
