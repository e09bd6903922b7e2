"""Text to tokens: sources, tokenizers, memory-mapped shards, and the batches cut from them."""

from statemix.data.batches import Batch, collate
from statemix.data.tokens import Split, TokenData, open_data

__all__ = ["Batch", "Split", "TokenData", "collate", "open_data"]
