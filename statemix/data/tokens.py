"""A prepared text: a directory with memory-mapped shards of tokens.

data.json             a `Meta`
tokenizer.json        the tokenizer that encoded the text
train-00000.bin       the tokens of a shard
train-00000.docs      the positions at which its documents start
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from statemix.config.build import build, shown
from statemix.config.fields import AT_LEAST_ONE, NON_NEGATIVE, Range
from statemix.files.json_files import damage, read_object

__all__ = [
    "META",
    "TOKENIZER",
    "VERSION",
    "Meta",
    "Piece",
    "Shard",
    "ShardMeta",
    "Split",
    "SplitMeta",
    "TokenData",
    "check_ids",
    "hash_of_tokens",
    "open_data",
]

META = "data.json"
TOKENIZER = "tokenizer.json"
VERSION = 1
_DTYPES = ("<u2", "<u4")
SPLITS = ("train", "validation")
_ADVICE = "Prepare the text again."
_VERIFIED = 1 << 28  # hashes are verified for data of at most this many bytes


Count = Annotated[int, AT_LEAST_ONE]
# A shard has at least the end-of-text token before its first document, and the one after it.
Tokens = Annotated[int, Range("at least 2 and below 2⁴⁸", lambda x: 2 <= x < 1 << 48)]


@dataclass(frozen=True)
class ShardMeta:
    """Description of a shard: a file of tokens and a file with the starts of its documents.

    Args:
        hash: hash of the tokens; empty if an older version wrote the shard.
    """

    name: str
    tokens: Tokens
    documents: Count
    hash: str = ""

    def __post_init__(self) -> None:
        if Path(self.name).name != self.name:
            raise ValueError(f"the name of a shard must be that of a file, got {self.name!r}")


@dataclass(frozen=True)
class SplitMeta:
    """Description of a split: its shards and the size of the original text in bytes."""

    bytes: Count
    shards: tuple[ShardMeta, ...]

    def __post_init__(self) -> None:
        if not self.shards:
            raise ValueError("a split must have at least one shard")

    @property
    def predictions(self) -> int:
        """Number of predicted tokens: all but the first of each shard."""
        return sum(shard.tokens - 1 for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)


@dataclass(frozen=True)
class Meta:
    """Description of a prepared directory, stored as data.json.

    Args:
        vocab: the largest token id plus one.
        empty: number of empty documents in the source, which were skipped.
    """

    version: Count
    source: str
    vocab: Count
    eot: Annotated[int, NON_NEGATIVE]
    dtype: str
    splits: dict[str, SplitMeta]
    empty: Annotated[int, NON_NEGATIVE] = 0


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens: inputs are all but the last, targets all but the first.

    `starts` are the indices of inputs at which a document starts.
    """

    tokens: np.ndarray
    starts: np.ndarray


@dataclass(frozen=True)
class Shard:
    """The memory-mapped tokens of a shard, and the starts of its documents."""

    tokens: np.ndarray
    starts: np.ndarray

    def piece(self, start: int, stop: int) -> Piece:
        """Cut out the inputs start .. stop − 1 and their targets."""
        first, last = np.searchsorted(self.starts, (start + 1, stop))
        return Piece(np.asarray(self.tokens[start : stop + 1]), self.starts[first:last] - start)


@dataclass(frozen=True)
class Split:
    """The shards of a split."""

    shards: tuple[Shard, ...]
    meta: SplitMeta

    def count(self, length: int) -> int:
        """The number of full windows of `length` inputs."""
        return sum((len(shard.tokens) - 1) // length for shard in self.shards)

    def window(self, index: int, length: int) -> Piece:
        """Return the full window with the given index."""
        for shard in self.shards:
            count = (len(shard.tokens) - 1) // length
            if index < count:
                return shard.piece(index * length, (index + 1) * length)
            index -= count
        raise IndexError(f"There are {self.count(length)} windows of length {length}.")

    def pieces(self, length: int, limit: int = 0) -> list[Piece]:
        """Cover every prediction, or the first `limit`, exactly once with windows.

        The last window of a shard may be shorter.
        """
        pieces: list[Piece] = []
        left = limit or self.meta.predictions
        for shard in self.shards:
            for start in range(0, len(shard.tokens) - 1, length):
                if left <= 0:
                    return pieces
                stop = min(start + min(length, left), len(shard.tokens) - 1)
                pieces.append(shard.piece(start, stop))
                left -= stop - start
        return pieces


def check_ids(split: Split, vocab: int) -> None:
    """Read all tokens of `split` and raise an error if one is outside the vocabulary."""
    for shard in split.shards:
        largest = int(shard.tokens.max(initial=0))
        if largest >= vocab:
            name = getattr(shard.tokens, "filename", "")
            raise ValueError(
                f"The shard {name} has the token id {largest}, but its text has {vocab} tokens. "
                "Copy it again: it is damaged."
            )


@dataclass(frozen=True)
class TokenData:
    """A prepared directory, opened."""

    directory: Path
    meta: Meta

    def split(self, name: str) -> Split:
        """Open the split called `name`: check the sizes of its files and map them into memory."""
        if name not in self.meta.splits:
            raise ValueError(f"Unknown split {name!r}. Available: {', '.join(self.meta.splits)}.")
        meta = self.meta.splits[name]
        dtype = np.dtype(self.meta.dtype)
        shards = (_open_shard(self.directory, shard, dtype) for shard in meta.shards)
        return Split(tuple(shards), meta)

    def verify(self) -> None:
        """Compare the tokens with their hashes, unless there are too many to read quickly."""
        shards = [
            shard for split in self.meta.splits.values() for shard in split.shards if shard.hash
        ]
        dtype = np.dtype(self.meta.dtype)
        if sum(shard.tokens for shard in shards) * dtype.itemsize > _VERIFIED:
            return
        for shard in shards:
            if hash_of_tokens(_open_shard(self.directory, shard, dtype).tokens) != shard.hash:
                path = self.directory / f"{shard.name}.bin"
                raise ValueError(
                    f"The shard {path} is damaged: the hash of its tokens does not match. "
                    "Copy it again."
                )

    @property
    def tokenizer(self) -> Path:
        """Path of the tokenizer file."""
        return self.directory / TOKENIZER


def hash_of_tokens(tokens: np.ndarray) -> str:
    """Hash the bytes of the tokens to sixteen hexadecimal digits."""
    return hashlib.sha256(np.ascontiguousarray(tokens).data).hexdigest()[:16]


def open_data(directory: Path) -> TokenData:
    """Open a directory that `statemix lm prepare` wrote."""
    path = directory / META
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} holds no prepared text: it has no {META}. "
            "Make one with `statemix lm prepare`."
        )
    data = read_object(path, _ADVICE)
    version = data.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"{path} was written by a newer statemix (version {version}, "
            f"this one reads {VERSION}). Upgrade statemix."
        )
    try:
        meta = build(Meta, data)
        _check_meta(meta)
    except ValueError as error:
        raise damage(path, error, _ADVICE) from error
    if not (directory / TOKENIZER).is_file():
        raise FileNotFoundError(
            f"{directory} has no {TOKENIZER}. Copy the tokenizer that encoded its shards there, "
            "or prepare the text again."
        )
    return TokenData(directory, meta)


def _check_meta(meta: Meta) -> None:
    """Raise an error unless the parts of `meta` fit together."""
    if meta.dtype not in _DTYPES:
        raise ValueError(
            f"tokens must be of the dtype {' or '.join(_DTYPES)}, got {shown(meta.dtype)}"
        )
    if not meta.eot < meta.vocab:
        raise ValueError(f"`eot` must be below `vocab` = {meta.vocab}, got {meta.eot}")
    if missing := [name for name in SPLITS if name not in meta.splits]:
        raise ValueError(f"it lacks the split {', '.join(missing)}")


def _open_shard(directory: Path, meta: ShardMeta, dtype: np.dtype) -> Shard:
    """Check that a shard is complete and map it into memory."""
    paths = (directory / f"{meta.name}.bin", directory / f"{meta.name}.docs")
    for path, size in zip(paths, (meta.tokens * dtype.itemsize, meta.documents * 8), strict=True):
        if not path.is_file():
            raise FileNotFoundError(
                f"The shard {path} is missing. Copy it again, or prepare the text again."
            )
        if path.stat().st_size != size:
            raise ValueError(
                f"The shard {path} is truncated or damaged: expected {size:,} bytes, "
                f"got {path.stat().st_size:,}. Copy it again."
            )
    starts = np.fromfile(paths[1], "<i8")
    if len(starts) and (starts[0] < 0 or starts[-1] >= meta.tokens or (np.diff(starts) <= 0).any()):
        raise ValueError(
            f"The shard {paths[1]} is damaged: the starts of documents must be increasing "
            "positions. Copy it again."
        )
    return Shard(np.memmap(paths[0], dtype, mode="r"), starts)
