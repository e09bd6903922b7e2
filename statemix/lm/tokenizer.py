"""The tokenizer that lies beside a model's weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statemix.lm.checkpoint import SavedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")  # what tokenizers call the token that ends a text


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer in the file `path`."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ValueError("Text needs the package tokenizers. Install it with: pip install 'statemix[lm]'") from error
    if not path.is_file():
        raise FileNotFoundError(f"There is no tokenizer {path}.")
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"{path} is not a tokenizer that the package tokenizers reads: {error}") from error


def find_end(tokenizer: "Tokenizer", about: Mapping[str, Any]) -> int:
    """The token that stands between texts: the one that training noted as `end_of_text`, or one with a usual name."""
    noted = about.get("end_of_text")
    if noted is not None:
        return int(noted)
    for name in ENDS:
        token: int | None = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise ValueError(
        f"The tokenizer has none of {', '.join(ENDS)} to end a text with. Note its id in the model's config: about, end_of_text."
    )


def check_vocabulary(tokenizer: "Tokenizer", vocab: int, path: Path) -> None:
    """No token of `tokenizer` is beyond the model's vocabulary."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab:
        raise ValueError(
            f"The tokenizer {path} has token ids up to {largest}, but the model knows {vocab} tokens. It is not the model's own."
        )


def open_tokenizer(saved: SavedModel) -> tuple["Tokenizer", int]:
    """The tokenizer of a model, whose vocabulary it fits, and the token that ends a text."""
    tokenizer = read_tokenizer(saved.tokenizer_file)
    check_vocabulary(tokenizer, saved.model.config.vocab, saved.tokenizer_file)
    return tokenizer, find_end(tokenizer, saved.about)
