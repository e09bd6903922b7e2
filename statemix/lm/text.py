"""Texts to evaluate a model on: text files, or the held-out documents of a prepared directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statemix.data.sources import check_kind, from_files
from statemix.data.tokens import open_data
from statemix.lm.ngram import documents_of
from statemix.lm.saved import SavedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Text", "read_held_out", "read_text"]


@dataclass(frozen=True)
class Text:
    """The tokens of some documents, and their size in bytes."""

    documents: list[Tensor]
    bytes: int


def read_text(path: Path, saved: SavedModel, tokenizer: "Tokenizer", field: str = "text") -> Text:
    """The documents of a file, or the held-out documents of a prepared directory."""
    if path.is_dir():
        return read_held_out(path, saved)
    check_kind(path)
    bodies = [body for body in from_files(str(path), [path], field).read() if body]
    if not bodies:
        raise ValueError(f"{path} is empty.")
    ids = [tokenizer.encode(body, add_special_tokens=False).ids for body in bodies]
    documents = [torch.tensor(own, dtype=torch.long) for own in ids]
    return Text(documents, sum(len(body.encode()) for body in bodies))


def read_held_out(directory: Path, saved: SavedModel) -> Text:
    """The held-out documents of a directory that was prepared with the model's tokenizer."""
    data = open_data(directory)
    if data.tokenizer.read_bytes() != saved.tokenizer_file.read_bytes():
        raise ValueError(
            f"{directory} was prepared with another tokenizer than that of the model in "
            f"{saved.directory}. Prepare the text with the model's tokenizer."
        )
    split = data.split("validation")
    documents = [torch.from_numpy(tokens) for tokens in documents_of(split)]
    return Text(documents, split.meta.bytes)
