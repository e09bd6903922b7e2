"""Tokenizers: load one from a file or from the hub, or train a byte-level BPE on the text.

A byte-level BPE can encode any text without unknown tokens, so bits per byte are comparable across
vocabularies. With 257 tokens it has no merges, and the model works on bytes. Special tokens that
occur literally in a text are encoded as ordinary text.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["EOT", "KNOWN_EOT", "find_eot", "load_tokenizer", "train_bpe", "word_tokenizer"]

EOT = "<|endoftext|>"
KNOWN_EOT = (EOT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
UNKNOWN = "<unk>"
_SMALLEST = 257  # 256 bytes and the end-of-text token
# tokenizers reserves memory for all tokens, and ends the process if there is too little.
_LARGEST = 1 << 24


def train_bpe(texts: Iterator[str], vocab: int) -> "Tokenizer":
    """Train a byte-level BPE with at most `vocab` tokens; token 0 is the end-of-text token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab < _SMALLEST:
        raise ValueError(
            f"A byte-level vocabulary has at least {_SMALLEST} tokens, 256 bytes and {EOT}: "
            f"got --vocab {vocab}."
        )
    if vocab > _LARGEST:
        raise ValueError(f"--vocab must be at most {_LARGEST:,}, got {vocab}.")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[EOT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def word_tokenizer(words: Sequence[str]) -> "Tokenizer":
    """A tokenizer whose tokens are these words; other words are unknown."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocab = {word: i for i, word in enumerate([EOT, UNKNOWN, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([EOT])
    return tokenizer


def load_tokenizer(name: str) -> "Tokenizer":
    """Load a tokenizer from a file, a directory or the hub, without truncation or padding."""
    tokenizer = _find_tokenizer(name)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _find_tokenizer(name: str) -> "Tokenizer":
    """Load a tokenizer as it was saved; it may truncate and pad."""
    from tokenizers import Tokenizer

    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.exists():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises no narrower type
            raise ValueError(
                f"{path} is not a tokenizer that the package `tokenizers` can read: {error}"
            ) from error
    if path.suffix == ".json" or name.startswith((".", "/")):
        raise FileNotFoundError(
            f"There is no tokenizer {path}. Without --tokenizer a BPE is trained on the text."
        )
    try:
        return Tokenizer.from_pretrained(name)
    except Exception as error:
        raise ValueError(
            f"The tokenizer {name!r} is not a file, and was not found on the hub: {error}"
        ) from error


def find_eot(tokenizer: "Tokenizer", name: str | None) -> int:
    """Find the id of the end-of-text token, which separates documents."""
    candidates = KNOWN_EOT if name is None else (name,)
    for candidate in candidates:
        token: int | None = tokenizer.token_to_id(candidate)
        if token is not None:
            return token
    raise ValueError(
        f"The tokenizer has no end-of-text token among {', '.join(candidates)}. "
        "Name its own with --end-of-text."
    )
