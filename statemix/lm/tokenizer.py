"""The tokenizer in a model's directory."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statemix.data.tokenizer import KNOWN_EOT, load_tokenizer
from statemix.extras import install_command
from statemix.lm.saved import SavedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["open_tokenizer"]


def _read_tokenizer(path: Path) -> "Tokenizer":
    """Load the tokenizer in the file `path`."""
    if find_spec("tokenizers") is None:
        raise ValueError(
            f"Text needs the package tokenizers. Install it with: {install_command('lm')}"
        )
    return load_tokenizer(str(path))


def _find_end(tokenizer: "Tokenizer", about: Mapping[str, Any]) -> int:
    """The id of the end-of-text token: `end_of_text` of the notes, or one with a common name."""
    noted = about.get("end_of_text")
    if noted is not None:
        return int(noted)
    for name in KNOWN_EOT:
        token: int | None = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise ValueError(
        f"The tokenizer has none of the usual end-of-text tokens: {', '.join(KNOWN_EOT)}. "
        "Add the id of its own to the model's config.json, as `end_of_text` of `about`."
    )


def _check_vocabulary(tokenizer: "Tokenizer", vocab: int, path: Path) -> None:
    """Raise an error if a token of `tokenizer` is outside the model's vocabulary."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab:
        raise ValueError(
            f"The tokenizer {path} has token ids up to {largest}, but the vocabulary of the model "
            f"has {vocab} tokens. Replace it with the tokenizer that the model was trained with."
        )


def open_tokenizer(saved: SavedModel) -> tuple["Tokenizer", int]:
    """The tokenizer of a model and its end-of-text token.

    Special tokens that occur literally in a text are encoded as ordinary text.
    """
    tokenizer = _read_tokenizer(saved.tokenizer_file)
    tokenizer.encode_special_tokens = True
    _check_vocabulary(tokenizer, saved.model.config.vocab, saved.tokenizer_file)
    return tokenizer, _find_end(tokenizer, saved.about)
