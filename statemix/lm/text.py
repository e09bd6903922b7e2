"""Texts to measure a model on: files of text, and what `statemix lm prepare` held out."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statemix.data.sources import check_kind, from_files
from statemix.data.tokens import open_data
from statemix.lm.saved import SavedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Text", "read_held_out", "read_text"]


@dataclass(frozen=True)
class Text:
    """The tokens of some documents, and how many bytes they were."""

    documents: list[Tensor]
    bytes: int


def read_text(path: Path, saved: SavedModel, tokenizer: "Tokenizer", field: str = "text") -> Text:
    """What is at `path`: the documents of a file, a text file being one, or those that were held out in a prepared directory."""
    if path.is_dir():
        return read_held_out(path, saved)
    check_kind(path)
    bodies = [body for body in from_files(str(path), [path], field).read() if body]
    if not bodies:
        raise ValueError(f"{path} is empty.")
    ids = [tokenizer.encode(body, add_special_tokens=False).ids for body in bodies]
    return Text(
        [torch.tensor(own, dtype=torch.long) for own in ids],
        sum(len(body.encode()) for body in bodies),
    )


def read_held_out(directory: Path, saved: SavedModel) -> Text:
    """The validation documents of a prepared directory, whose tokens must be the model's."""
    data = open_data(directory)
    if data.tokenizer.read_bytes() != saved.tokenizer_file.read_bytes():
        raise ValueError(
            f"{directory} was prepared with another tokenizer than that of the model in {saved.directory}. Prepare the text with it."
        )
    split, documents = data.split("validation"), []
    for shard in split.shards:
        ends = [*shard.starts.tolist(), len(shard.tokens) - 1]
        documents += [
            torch.from_numpy(shard.tokens[a + 1 : b].astype("int64")) for a, b in pairwise(ends)
        ]
    return Text(documents, split.meta.bytes)
