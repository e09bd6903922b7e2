"""Tokenizers: one from a file or by name, or a byte-level BPE trained on the text itself.

Every byte sequence can be encoded by a byte-level BPE, so nothing is unknown, and bits per byte compare across vocabularies; with
257 tokens it has no merges, and is a model of bytes.  Words that look like special tokens are encoded as the text they are.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["EOT", "KNOWN_EOT", "find_eot", "load_tokenizer", "train_bpe"]

EOT = "<|endoftext|>"
KNOWN_EOT = (EOT, "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
SMALLEST = 257  # bytes, and the token that ends a document


def train_bpe(texts: Iterator[str], vocab: int) -> "Tokenizer":
    """A byte-level BPE of at most `vocab` tokens; token 0 ends a document."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if vocab < SMALLEST:
        raise ValueError(
            f"A byte-level vocabulary has at least {SMALLEST} tokens, 256 bytes and {EOT}: got --vocab {vocab}."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[EOT], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def load_tokenizer(name: str) -> "Tokenizer":
    """The tokenizer in the file (or directory) `name`, or called so on the Hugging Face hub; it encodes texts whole, and no more."""
    tokenizer = find_tokenizer(name)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def find_tokenizer(name: str) -> "Tokenizer":
    """The tokenizer as it was saved, which may cut texts and pad them."""
    from tokenizers import Tokenizer

    path = Path(name)
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.exists():
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
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
            f"The tokenizer {name!r} is no file, and was not found on the hub by that name: {error}"
        ) from error


def find_eot(tokenizer: "Tokenizer", name: str | None) -> int:
    """The id of the token that stands between documents."""
    candidates = KNOWN_EOT if name is None else (name,)
    for candidate in candidates:
        token: int | None = tokenizer.token_to_id(candidate)
        if token is not None:
            return token
    raise ValueError(
        f"The tokenizer has none of {', '.join(candidates)} to end a document with. Name its own with --end-of-text."
    )
