"""What `statemix lm prepare` prints: a progress bar, then the sizes of the splits."""

import re
from pathlib import Path

from rich.progress import BarColumn, TextColumn
from rich.table import Table

from statemix.commands.views.console import make_console, make_progress, say
from statemix.data.prepare import PrepareConfig, prepare
from statemix.data.sources import COLUMNS, HUB, LINES, TEXT, open_source
from statemix.data.stories import PREFIX
from statemix.data.tokens import Meta

__all__ = ["name_of", "prepare_with_progress"]


def prepare_with_progress(source: str, field: str, config: PrepareConfig, out: Path | None) -> Meta:
    """Prepare a text with a progress bar, and print the sizes of its splits."""
    place = Path("data") / name_of(source) if out is None else out
    count = TextColumn("{task.completed} documents", markup=False)
    with make_progress(BarColumn(), count) as progress:
        bar = progress.add_task(source, total=None)

        def observe(stage: str, done: int, total: int | None) -> None:
            progress.update(bar, description=stage, completed=done, total=total)

        meta = prepare(open_source(source, field), config, place, observe)
    columns = ("documents", "bytes", "tokens", "bytes per token", "shards")
    table = Table("", *columns, title=f"{source}, {meta.vocab} tokens", title_justify="left")
    for name, split in meta.splits.items():
        table.add_row(
            name,
            f"{split.documents:,}",
            f"{split.bytes:,}",
            f"{split.predictions:,}",
            f"{split.bytes / split.predictions:.2f}",
            str(len(split.shards)),
        )
    make_console().print(table)
    if meta.empty:
        say(f"{meta.empty:,} empty documents left out")
    say(f"written to {place}; train with: statemix lm train {place}")
    return meta


def name_of(source: str) -> str:
    """The default name of a prepared text.

    A file's name without its extension, a directory's name, the last part of a name on the hub, or
    the name of stories with hyphens.
    """
    if source.startswith(PREFIX):
        return re.sub(r"\W+", "-", source)
    if source.startswith(HUB):
        return Path(source.rpartition(":")[2]).name
    path = Path(source).resolve()
    if path.is_dir():
        return path.name
    extensions = (*LINES, *COLUMNS, *TEXT)
    extension = next((end for end in extensions if path.name.lower().endswith(end)), "")
    return path.name[: len(path.name) - len(extension)] or path.name
