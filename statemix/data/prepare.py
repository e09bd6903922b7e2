"""Encode documents as shards of tokens, with a held-out split.

In the token stream of a split, the end-of-text token E precedes each document,

    E d d d E d d E d d d d E

and one more E ends each shard, so that every token and every end of a document is predicted from a
context. A hash of the text decides the split of a document: the same documents are always held
out, and duplicates are never in both splits. All files are written to a temporary directory, which
is renamed when it is complete.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from statemix.data.sources import Source
from statemix.data.tokenizer import find_eot, load_tokenizer, train_bpe, word_tokenizer
from statemix.data.tokens import (
    META,
    TOKENIZER,
    VERSION,
    Meta,
    ShardMeta,
    SplitMeta,
    hash_of_tokens,
)
from statemix.files.writing import write_array, write_atomically, writing_directory

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["PrepareConfig", "Report", "cut_of", "prepare"]

_BATCH = 256  # documents encoded at a time
Report = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class PrepareConfig:
    """How text becomes tokens.

    Args:
        tokenizer: a file or a name on the hub (None: the words of a source that has few of them;
            else train a byte-level BPE of `vocab` tokens on the training split).
        end_of_text: the token between documents (None: search for a common one).
        validation: share of the documents to hold out; for a single document, its last part.
        shard_tokens: start a new shard after this many tokens.
    """

    tokenizer: str | None = None
    vocab: int = 4096
    end_of_text: str | None = None
    validation: float = 0.02
    shard_tokens: int = 100_000_000

    def __post_init__(self) -> None:
        if not 0 < self.validation < 1:
            raise ValueError(
                f"`validation` must be a share between 0 and 1, got {self.validation}."
            )
        if self.shard_tokens < 1:
            raise ValueError(f"`shard_tokens` must be at least 1, got {self.shard_tokens}.")


@dataclass(frozen=True)
class _Survey:
    """Statistics of a source, and the hashes of the documents to hold out."""

    documents: int
    empty: int
    held_out: frozenset[int]
    single: bool


def prepare(source: Source, config: PrepareConfig, out: Path, report: Report) -> Meta:
    """Encode `source` and write it to the new directory `out`."""
    if out.exists():
        raise ValueError(
            f"{out} exists already, and nothing is overwritten. Choose another --out, or delete it."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    survey = _look_at(source, config.validation, report)
    if config.tokenizer is None and source.words:
        tokenizer = word_tokenizer(source.words)
    elif config.tokenizer is None:
        documents = _divided(source, survey, config.validation)
        training = (text for split, text in documents if split == "train")
        counted = _counted(training, "training a tokenizer", survey.documents, report)
        tokenizer = train_bpe(counted, config.vocab)
    else:
        tokenizer = load_tokenizer(config.tokenizer)
    tokenizer.encode_special_tokens = True
    with writing_directory(out) as part:
        meta = _encode(source, survey, config, tokenizer, part, report)
        write_atomically(part / TOKENIZER, tokenizer.to_str(pretty=True).encode())
        write_atomically(part / META, (json.dumps(asdict(meta), indent=1) + "\n").encode())
    return meta


def _look_at(source: Source, share: float, report: Report) -> _Survey:
    """Read the full source once, so that errors occur before anything is written."""
    hashes = []
    empty = 0
    for text in _counted(source.read(), "reading", None, report):
        if text.strip():
            hashes.append(_hash_of(text))
        else:
            empty += 1
    if not hashes:
        reason = f": {empty} documents, all of them empty." if empty else "."
        raise ValueError(f"{source.name} holds no text{reason}")
    unique = np.unique(np.array(hashes, dtype=np.uint64))
    count = min(max(1, round(share * len(unique))), len(unique) - 1)  # keep one to train on
    held_out = unique[:count]
    return _Survey(len(hashes), empty, frozenset(held_out.tolist()), single=len(unique) == 1)


def _hash_of(text: str) -> int:
    """Hash a text to 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _divided(source: Source, survey: _Survey, share: float) -> Iterator[tuple[str, str]]:
    """Yield (split, text) for each document that is not empty."""
    for text in source.read():
        if not text.strip():
            continue
        if survey.single:
            cut = cut_of(text, share)
            yield from (("train", text[:cut]), ("validation", text[cut:]))
            return
        yield ("validation" if _hash_of(text) in survey.held_out else "train"), text


def cut_of(text: str, share: float) -> int:
    """Where to split a single text, preferably at the start of a line before the exact share."""
    cut = max(1, int(len(text) * (1 - share)))
    if cut >= len(text):
        raise ValueError(
            f"A single document of {len(text)} characters is too short to hold out a share of "
            f"{share}."
        )
    near = min(cut, len(text) - cut) // 2  # neither part may lose more than half
    line = text.rfind("\n", max(1, cut - near - 1), cut) + 1
    return line or cut


def _counted(texts: Iterator[str], stage: str, total: int | None, report: Report) -> Iterator[str]:
    """Yield the texts unchanged and report their number."""
    for i, text in enumerate(texts, start=1):
        report(stage, i, total)
        yield text


@dataclass
class _Writer:
    """Writes the shards of one split."""

    directory: Path
    name: str
    dtype: np.dtype
    eot: int
    shard_tokens: int
    bytes: int = 0
    shards: list[ShardMeta] = field(default_factory=list)
    tokens: list[np.ndarray] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    size: int = 0
    highest: int = 0

    def add(self, text: str, ids: list[int]) -> None:
        """Append a document."""
        self.starts.append(self.size)
        self.tokens.append(np.array([self.eot, *ids], dtype=self.dtype))
        self.size += 1 + len(ids)
        self.bytes += len(text.encode())
        if self.size >= self.shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write the current shard to disk and start the next one."""
        if not self.tokens:
            return
        name = f"{self.name}-{len(self.shards):05d}"
        tokens = np.concatenate([*self.tokens, np.array([self.eot], dtype=self.dtype)])
        write_array(self.directory / f"{name}.bin", tokens)
        write_array(self.directory / f"{name}.docs", np.array(self.starts, dtype="<i8"))
        self.highest = max(self.highest, int(tokens.max()))
        self.shards.append(ShardMeta(name, len(tokens), len(self.starts), hash_of_tokens(tokens)))
        self.tokens = []
        self.starts = []
        self.size = 0

    def meta(self) -> SplitMeta:
        return SplitMeta(self.bytes, tuple(self.shards))


def _encode(
    source: Source,
    survey: _Survey,
    config: PrepareConfig,
    tokenizer: "Tokenizer",
    part: Path,
    report: Report,
) -> Meta:
    """Write the shards of both splits to the directory `part` and return their description."""
    vocab = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    eot = find_eot(tokenizer, config.end_of_text)
    dtype = np.dtype("<u2" if vocab <= 1 << 16 else "<u4")
    writers = {
        name: _Writer(part, name, dtype, eot, config.shard_tokens)
        for name in ("train", "validation")
    }
    documents = _divided(source, survey, config.validation)
    done = 0
    while batch := list(islice(documents, _BATCH)):
        encoded = tokenizer.encode_batch_fast([text for _, text in batch], add_special_tokens=False)
        for (split, text), encoding in zip(batch, encoded, strict=True):
            writers[split].add(text, encoding.ids)
        done += len(batch)
        report("encoding", done, survey.documents)
    for writer in writers.values():
        writer.flush()
    highest = max(writer.highest for writer in writers.values())
    if highest >= vocab:
        raise ValueError(
            f"The tokenizer returned the token {highest}, outside its own vocabulary of {vocab}."
        )
    splits = {name: writer.meta() for name, writer in writers.items()}
    return Meta(VERSION, source.name, vocab, eot, dtype.str, splits, survey.empty)
