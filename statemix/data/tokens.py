"""Memory-mapped tokens, and the batches cut from them: what step s reads is a function of the seed and s, of nothing else.

A split of shards is cut into windows of T + 1 tokens that overlap by one, the last target of one being the first input of the next.
Each epoch takes the windows in an order of its own.  Step s of a run takes the s-th `batch` of them, whatever the number of ranks:
ranks divide it, so a run can go on with another number of them, and its position is the step.

A window may hold the end of one document and the start of another.  Its documents are then packed, `cu_seqlens` telling where each
begins, and no state goes from one to the next.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "META",
    "TOKENIZER",
    "VERSION",
    "Batch",
    "Meta",
    "Piece",
    "ShardMeta",
    "Split",
    "SplitMeta",
    "TokenData",
    "check_ids",
    "collate",
    "epoch_order",
    "hash_of_tokens",
    "open_data",
    "windows_of_step",
]

META, TOKENIZER, VERSION = "data.json", "tokenizer.json", 1
DTYPES = ("<u2", "<u4")
VERIFIED = 1 << 28  # bytes of tokens up to which all are read, to compare them with their hashes
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class ShardMeta:
    """A file of tokens, and one of where documents begin.

    Args:
        hash: of the tokens, empty where older versions noted none.
    """

    name: str
    tokens: int
    documents: int
    hash: str = ""


@dataclass(frozen=True)
class SplitMeta:
    """The shards of a split, and how many bytes of text they were."""

    bytes: int
    shards: tuple[ShardMeta, ...]

    @property
    def predictions(self) -> int:
        """Tokens that are predicted from those before them: all but the first of each shard."""
        return sum(shard.tokens - 1 for shard in self.shards)

    @property
    def documents(self) -> int:
        return sum(shard.documents for shard in self.shards)


@dataclass(frozen=True)
class Meta:
    """What a prepared directory holds.

    Args:
        vocab: the largest id of the tokenizer, and one.
        empty: documents of the source that held nothing and were left out.
    """

    version: int
    source: str
    vocab: int
    eot: int
    dtype: str
    splits: dict[str, SplitMeta]
    empty: int = 0


@dataclass(frozen=True)
class Piece:
    """Some tokens in a row, inputs and targets being all but the last and all but the first, and where in the inputs documents begin."""

    tokens: np.ndarray
    starts: np.ndarray


@dataclass(frozen=True)
class Shard:
    """The tokens of a file, mapped into memory, and where documents begin in it."""

    tokens: np.ndarray
    starts: np.ndarray

    def piece(self, start: int, stop: int) -> Piece:
        """Inputs start .. stop − 1 and their targets."""
        first, last = np.searchsorted(self.starts, (start + 1, stop))
        return Piece(np.asarray(self.tokens[start : stop + 1]), self.starts[first:last] - start)


@dataclass(frozen=True)
class Split:
    """The shards of a split."""

    shards: tuple[Shard, ...]
    meta: SplitMeta

    def count(self, length: int) -> int:
        """Whole windows of `length` inputs."""
        return sum((len(shard.tokens) - 1) // length for shard in self.shards)

    def window(self, index: int, length: int) -> Piece:
        """Window `index` of those `count` counts."""
        for shard in self.shards:
            count = (len(shard.tokens) - 1) // length
            if index < count:
                return shard.piece(index * length, (index + 1) * length)
            index -= count
        raise IndexError(f"There are {self.count(length)} windows of length {length}.")

    def pieces(self, length: int, limit: int = 0) -> list[Piece]:
        """Windows that cover every prediction once, or the first `limit` of them; the last of a shard may be shorter."""
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
    """Every token of `split` is one of the vocabulary; all of them are read."""
    for shard in split.shards:
        largest = int(shard.tokens.max(initial=0))
        if largest >= vocab:
            name = getattr(shard.tokens, "filename", "")
            raise ValueError(
                f"The shard {name} has the token id {largest}, but its text has {vocab} tokens. Copy it again: it is damaged."
            )


@dataclass(frozen=True)
class TokenData:
    """A prepared directory, opened."""

    directory: Path
    meta: Meta

    def split(self, name: str) -> Split:
        """The split called `name`, its files mapped and their sizes checked."""
        if name not in self.meta.splits:
            raise ValueError(f"Unknown split {name!r}. Available: {', '.join(self.meta.splits)}.")
        meta = self.meta.splits[name]
        return Split(
            tuple(
                open_shard(self.directory, shard, np.dtype(self.meta.dtype))
                for shard in meta.shards
            ),
            meta,
        )

    def verify(self) -> None:
        """Compare tokens with their hashes, if they are few enough to read them all."""
        shards = [
            shard for split in self.meta.splits.values() for shard in split.shards if shard.hash
        ]
        dtype = np.dtype(self.meta.dtype)
        if sum(shard.tokens for shard in shards) * dtype.itemsize > VERIFIED:
            return
        for shard in shards:
            if hash_of_tokens(open_shard(self.directory, shard, dtype).tokens) != shard.hash:
                path = self.directory / f"{shard.name}.bin"
                raise ValueError(
                    f"The shard {path} does not hold the tokens that were prepared: its hash is another. Copy it again."
                )

    @property
    def tokenizer(self) -> Path:
        """The file of the tokenizer."""
        return self.directory / TOKENIZER


def hash_of_tokens(tokens: np.ndarray) -> str:
    """Sixteen hexadecimal digits of the tokens' bytes."""
    return hashlib.sha256(np.ascontiguousarray(tokens).data).hexdigest()[:16]


def open_data(directory: Path) -> TokenData:
    """Open what `statemix lm prepare` wrote."""
    path = directory / META
    if not path.is_file():
        raise FileNotFoundError(
            f"{directory} holds no prepared text: it has no {META}. Make one with `statemix lm prepare`."
        )
    try:
        meta = meta_from_dict(json.loads(path.read_text()))
        newer = meta.version > VERSION
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is damaged: {error}. Prepare the text again.") from error
    if newer:
        raise ValueError(
            f"{path} was written by a newer statemix (version {meta.version}, this one reads {VERSION}). Upgrade statemix."
        )
    if meta.dtype not in DTYPES:
        raise ValueError(
            f"{path} is damaged: tokens must be of the dtype {' or '.join(DTYPES)}, got {meta.dtype!r}. Prepare the text again."
        )
    if not (directory / TOKENIZER).is_file():
        raise FileNotFoundError(
            f"{directory} has no {TOKENIZER}. Put the tokenizer that encoded its shards there, or prepare the text again."
        )
    return TokenData(directory, meta)


def meta_from_dict(data: dict[str, Any]) -> Meta:
    splits = {
        name: SplitMeta(split["bytes"], tuple(ShardMeta(**shard) for shard in split["shards"]))
        for name, split in data["splits"].items()
    }
    return Meta(
        data["version"],
        data["source"],
        data["vocab"],
        data["eot"],
        data["dtype"],
        splits,
        data.get("empty", 0),
    )


def open_shard(directory: Path, meta: ShardMeta, dtype: np.dtype) -> Shard:
    """Map a shard into memory, after checking that all of it is there."""
    paths = (directory / f"{meta.name}.bin", directory / f"{meta.name}.docs")
    for path, size in zip(paths, (meta.tokens * dtype.itemsize, meta.documents * 8), strict=True):
        if not path.is_file():
            raise FileNotFoundError(
                f"The shard {path} is missing. Copy it again, or prepare the text again."
            )
        if path.stat().st_size != size:
            raise ValueError(
                f"The shard {path} is truncated or damaged: expected {size:,} bytes, got {path.stat().st_size:,}. Copy it again."
            )
    starts = np.fromfile(paths[1], "<i8")
    if len(starts) and (starts[0] < 0 or starts[-1] >= meta.tokens or (np.diff(starts) <= 0).any()):
        raise ValueError(
            f"The shard {paths[1]} is damaged: documents must begin one after the other. Copy it again."
        )
    return Shard(np.memmap(paths[0], dtype, mode="r"), starts)


@dataclass(frozen=True)
class Batch:
    """Inputs and targets (B, T); or (1, sum of lengths), with `cu_seqlens` telling where sequences begin."""

    tokens: Tensor
    targets: Tensor
    cu_seqlens: Tensor | None

    def to(self, device: torch.device) -> "Batch":
        return Batch(
            self.tokens.to(device),
            self.targets.to(device),
            None if self.cu_seqlens is None else self.cu_seqlens.to(device),
        )


def collate(pieces: list[Piece], *, reset: bool = True) -> Batch:
    """A batch of pieces: a rectangle where it can be, packed where lengths differ or documents begin inside.

    Args:
        reset: begin every document with a fresh state; if not, states go on from one document of a piece to the next.
    """
    lengths = [len(piece.tokens) - 1 for piece in pieces]
    inputs = np.stack if len(set(lengths)) == 1 else np.concatenate
    tokens, targets = (
        torch.from_numpy(inputs([p.tokens[part].astype(np.int64) for p in pieces]))
        for part in (np.s_[:-1], np.s_[1:])
    )
    if len(set(lengths)) == 1 and not (reset and any(len(piece.starts) for piece in pieces)):
        return Batch(tokens, targets, None)
    bounds, end = [0], 0
    for piece, length in zip(pieces, lengths, strict=True):
        bounds += [end + int(start) for start in piece.starts] if reset else []
        end += length
        bounds.append(end)
    return Batch(tokens.reshape(1, -1), targets.reshape(1, -1), torch.tensor(bounds))


def windows_of_step(step: int, batch: int, count: int, seed: int) -> np.ndarray:
    """The windows that step `step` reads, of `count` in all, in the order of the run's epochs."""
    positions = np.arange(step * batch, (step + 1) * batch)
    return np.array([epoch_order(seed, int(p) // count, count)[p % count] for p in positions])


@lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray:
    """A permutation of the windows for each epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)
