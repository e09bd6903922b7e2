"""Embeddings that the first mixer of a model may read as a table."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.layers.mixer import ReadsTables
from statemix.layers.weights import has_hooks
from statemix.ops.dispatch.layer import lookup_pays
from statemix.ops.lookup import Lookup

__all__ = ["embed"]


def embed(
    embedding: nn.Embedding,
    tokens: Int[Tensor, "B T"],
    mixer: nn.Module,
    positions: Float[Tensor, "T d"] | None = None,
) -> Float[Tensor, "B T d"] | Lookup:
    """The embeddings of `tokens`, plus `positions`, which the batch shares.

    They are a `Lookup` if that makes `mixer` faster and no hook on it expects a tensor. With
    positions the table has a row for every pair of a position and a token.
    """
    V = embedding.num_embeddings
    rows = V if positions is None else V * tokens.shape[1]
    reads_tables = isinstance(mixer, ReadsTables) and not has_hooks(mixer)
    if not (reads_tables and lookup_pays(rows, tokens)):
        return embedding(tokens) if positions is None else embedding(tokens) + positions
    if positions is None:
        return Lookup(embedding.weight, tokens)
    table = (positions.unsqueeze(1) + embedding.weight).flatten(0, 1)
    return Lookup(table, tokens + V * torch.arange(tokens.shape[1], device=tokens.device))
