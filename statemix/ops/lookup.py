"""Inputs that are rows of a small table: x[b, t] = table[tokens[b, t]].

A function f that acts on each step separately commutes with the lookup:

    f(table[tokens]) = f(table)[tokens].

If there are more tokens than rows, the right-hand side is faster: a layer computes the gates of
every row once and looks them up.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.ops.precision import is_autocast

__all__ = ["Lookup", "at_each_step", "gather", "map_rows", "steps_from", "steps_of"]


class Lookup(NamedTuple):
    """The inputs table[tokens], with table (V, d) and integer tokens (B, T), not gathered yet."""

    table: Tensor
    tokens: Tensor

    @property
    def shape(self) -> torch.Size:
        """(B, T, d)."""
        return torch.Size((*self.tokens.shape, self.table.shape[-1]))


def gather(x: Tensor | Lookup) -> Tensor:
    """The inputs as a tensor (B, T, d)."""
    return F.embedding(x.tokens, x.table) if isinstance(x, Lookup) else x


def steps_of(x: Tensor | Lookup) -> Tensor:
    """A tensor whose first two axes are B and T."""
    return x.tokens if isinstance(x, Lookup) else x


def steps_from(x: Tensor | Lookup, start: int) -> Tensor | Lookup:
    """The steps `start` .. T − 1."""
    return Lookup(x.table, x.tokens[:, start:]) if isinstance(x, Lookup) else x[:, start:]


def map_rows(f: Callable[[Tensor], Tensor], x: Tensor | Lookup) -> Tensor | Lookup:
    """f(x), applied to the rows of a table before they are looked up."""
    return Lookup(f(x.table), x.tokens) if isinstance(x, Lookup) else f(x)


def at_each_step(f: Callable[[Tensor], Tensor], x: Tensor | Lookup) -> Tensor:
    """f(x) at every step, computed once for each row of a table.

    In half precision, f is computed at every step. Otherwise the gradients of all uses of a row
    would be summed in half precision.
    """
    if isinstance(x, Lookup) and (is_autocast(x.table) or x.table.dtype.itemsize < 4):
        return f(gather(x))
    return gather(map_rows(f, x))
