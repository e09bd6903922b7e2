"""Texts to measure a model on: files of text, and what `statemix lm prepare` held out."""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statemix.data.sources import decode
from statemix.data.tokens import open_data
from statemix.lm.checkpoint import SavedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Text:
    """The tokens of some documents, and how many bytes they were."""

    documents: list[Tensor]
    bytes: int


def read_text(path: Path, saved: SavedModel, tokenizer: "Tokenizer") -> Text:
    """What is at `path`: a file of text in UTF-8 is one document, a prepared directory those that were held out."""
    if path.is_dir():
        return read_held_out(path, saved)
    body = decode(path.read_bytes(), str(path))
    if not body:
        raise ValueError(f"{path} is empty.")
    return Text([torch.tensor(tokenizer.encode(body, add_special_tokens=False).ids, dtype=torch.long)], len(body.encode()))


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
        documents += [torch.from_numpy(shard.tokens[a + 1 : b].astype("int64")) for a, b in pairwise(ends)]
    return Text(documents, split.meta.bytes)
