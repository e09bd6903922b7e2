"""The tokenizer that lies beside a model's weights."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statemix.data.tokenizer import KNOWN_EOT, load_tokenizer
from statemix.lm.saved import SavedModel

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["open_tokenizer"]


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer in the file `path`."""
    if find_spec("tokenizers") is None:
        raise ValueError(
            "Text needs the package tokenizers. Install it with: pip install 'statemix[lm]'"
        )
    return load_tokenizer(str(path))


def find_end(tokenizer: "Tokenizer", about: Mapping[str, Any]) -> int:
    """The token that stands between texts: the one that training noted as `end_of_text`, or one with a usual name."""
    noted = about.get("end_of_text")
    if noted is not None:
        return int(noted)
    for name in KNOWN_EOT:
        token: int | None = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise ValueError(
        f"The tokenizer has none of {', '.join(KNOWN_EOT)} to end a text with. Note its id in the model's config: about, end_of_text."
    )


def check_vocabulary(tokenizer: "Tokenizer", vocab: int, path: Path) -> None:
    """No token of `tokenizer` is beyond the model's vocabulary."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab:
        raise ValueError(
            f"The tokenizer {path} has token ids up to {largest}, but the model knows {vocab} tokens. It is not the model's own."
        )


def open_tokenizer(saved: SavedModel) -> tuple["Tokenizer", int]:
    """The tokenizer of a model, whose vocabulary it fits, and the token that ends a text; words that look like that are but words."""
    tokenizer = read_tokenizer(saved.tokenizer_file)
    tokenizer.encode_special_tokens = True
    check_vocabulary(tokenizer, saved.model.config.vocab, saved.tokenizer_file)
    return tokenizer, find_end(tokenizer, saved.about)
