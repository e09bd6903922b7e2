"""Embeddings that the first mixer of a model may read as a table."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.layers.unit import LinearRecurrentUnit
from statemix.layers.weights import has_hooks
from statemix.ops.dispatch.layer import lookup_pays
from statemix.ops.lookup import Lookup

__all__ = ["embed"]


def embed(
    embedding: nn.Embedding, tokens: Int[Tensor, "B T"], mixer: nn.Module
) -> Float[Tensor, "B T d"] | Lookup:
    """The embeddings of `tokens`: as a `Lookup` if that makes `mixer` faster and no hook on it expects a tensor."""
    reads_tables = isinstance(mixer, LinearRecurrentUnit) and not has_hooks(mixer)
    if reads_tables and lookup_pays(embedding.weight, tokens):
        return Lookup(embedding.weight, tokens)
    return embedding(tokens)
