"""A small corpus for tests: sentences of a simple grammar, in documents of a few hundred bytes."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from statemix.data import TokenData, open_data
from statemix.data.prepare import PrepareConfig, prepare
from statemix.data.sources import open_source

SUBJECTS = ("the cat", "a dog", "my aunt", "the old king", "nobody")
VERBS = ("sees", "likes", "follows", "forgets", "paints")
PLACES = ("in the garden", "at night", "by the sea", "without a word")


def write_texts(directory: Path, documents: int = 40, sentences: int = 12) -> Path:
    """Write files of random sentences."""
    rng = np.random.default_rng(0)
    directory.mkdir(parents=True, exist_ok=True)
    for i in range(documents):
        lines = [
            " ".join(
                map(
                    str,
                    (
                        rng.choice(SUBJECTS),
                        rng.choice(VERBS),
                        rng.choice(SUBJECTS),
                        rng.choice(PLACES),
                    ),
                )
            )
            + ".\n"
            for _ in range(sentences)
        ]
        (directory / f"{i:03d}.txt").write_text("".join(lines))
    return directory


def little_data(directory: Path, *, vocab: int = 300, shard_tokens: int = 100_000) -> TokenData:
    """Write the sentences and prepare them as tokens, with a tenth held out."""
    texts = write_texts(directory / "texts")
    config = PrepareConfig(vocab=vocab, validation=0.1, shard_tokens=shard_tokens)
    prepare(open_source(str(texts)), config, directory / "data", lambda *_: None)
    return open_data(directory / "data")


@contextmanager
def small_files(size: int) -> Iterator[None]:
    """Limit the size of files to `size` bytes; writing more fails as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
