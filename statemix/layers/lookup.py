"""Tokens and their embeddings, which the first mixer of a model may read as a table."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.layers.mixer import ReadsTables
from statemix.layers.weights import has_hooks
from statemix.ops.check import check_device, check_tensor
from statemix.ops.dispatch.layer import lookup_pays
from statemix.ops.lookup import Lookup

__all__ = ["check_tokens", "embed"]


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


def check_tokens(name: str, tokens: Tensor, axes: str, embedding: nn.Embedding) -> None:
    """Raise an error unless tokens are integers with the given axes that `embedding` can look up.

    On a GPU the range is not checked here, because it would force a synchronisation; the embedding
    asserts it instead.
    """
    check_tensor(name, tokens)
    if tokens.dtype not in (torch.int32, torch.int64):
        raise TypeError(
            f"`{name}` must be integers (int32 or int64), got {tokens.dtype}. "
            f"Convert with {name}.long()."
        )
    if tokens.dim() != axes.count(",") + 1:
        raise ValueError(
            f"`{name}` must have the axes {axes}, got the shape {tuple(tokens.shape)}."
        )
    if tokens.is_meta:  # torch would return uninitialised memory
        check_device(name, tokens, "embedding", embedding.weight)
    if tokens.device.type == "cpu" and tokens.numel() > 0 and not torch.compiler.is_compiling():
        _check_range(tokens, embedding.num_embeddings)


def _check_range(tokens: Tensor, vocab: int) -> None:
    """Raise an error unless tokens are in 0 .. vocab − 1."""
    least, most = (int(token) for token in tokens.aminmax())
    if least < 0 or most >= vocab:
        raise ValueError(
            f"A token id must be in 0 .. {vocab - 1}, the model's vocabulary, "
            f"got {least if least < 0 else most}. "
            "Use the tokenizer that the model was trained with."
        )
