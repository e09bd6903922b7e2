"""Perplexity by position: how well each token is predicted, by how many came before it.

    nats[t] = Σ − log p(x[t] | x[0] .. x[t-1])        over stretches of a text, each from a fresh state

A model that was trained on stretches of 512 tokens should not get worse at the 5,000th: `Perplexity` tells.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from statemix.models.lm import LanguageModel, States
from statemix.models.loss import IGNORED

__all__ = ["LOGITS", "Perplexity", "measure_perplexity"]

LOGITS = 2**24  # logits that are held at once


@dataclass(frozen=True)
class Perplexity:
    """Losses of a text by position, in nats, and how many tokens each position had."""

    nats: Tensor
    counts: Tensor
    bytes: int

    def between(self, first: int, last: int) -> float:
        """Perplexity at positions first .. last − 1, NaN if there is none."""
        count = self.counts[first:last].sum().item()
        return (
            math.exp(min(self.nats[first:last].sum().item() / count, 700.0)) if count else math.nan
        )

    @property
    def bits_per_byte(self) -> float:
        """Bits that the whole text costs for each of its bytes, comparable between tokenizers."""
        return self.nats.sum().item() / math.log(2) / self.bytes

    def stretches(self) -> list[tuple[int, int]]:
        """Positions in growing stretches: 0 .. 15, 16 .. 31, 32 .. 63, and so on to the last."""
        length = int((self.counts > 0).sum())
        bounds = [0, *(2**k for k in range(4, 40) if 2**k < length), length]
        return list(pairwise(bounds))


@torch.inference_mode()
def measure_perplexity(
    model: LanguageModel,
    texts: Sequence[Tensor],
    n_bytes: int,
    *,
    start: int,
    length: int,
    batch: int,
    observe: Callable[[int], None] = lambda tokens: None,
) -> Perplexity:
    """Cut texts of tokens (N,) into stretches of `length`, the last of each perhaps shorter, and score all, each after `start`."""
    stretches = sorted(
        (part for text in texts for part in text.split(length) if part.numel()),
        key=len,
        reverse=True,
    )
    if not stretches or n_bytes < 1:
        raise ValueError("There is no text to measure: it has no tokens.")
    nats, counts = torch.zeros(length, dtype=torch.float64), torch.zeros(length, dtype=torch.int64)
    for first in range(0, len(stretches), batch):
        targets = pad_sequence(
            stretches[first : first + batch], batch_first=True, padding_value=IGNORED
        )
        inputs = F.pad(targets[:, :-1].clamp(min=0), (1, 0), value=start)
        nats[: targets.shape[1]] += losses(model, inputs, targets).double().sum(0)
        counts[: targets.shape[1]] += (targets != IGNORED).sum(0)
        observe(int((targets != IGNORED).sum()))
    return Perplexity(nats, counts, n_bytes)


def losses(model: LanguageModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """− log p of each target (B, T), zero where there is none, in parts of time, so that memory does not grow with T."""
    part = max(1, LOGITS // (model.config.vocab * inputs.shape[0]))
    states: States | None = None
    found = []
    for x, y in zip(inputs.split(part, 1), targets.split(part, 1), strict=True):
        logits, states = model(x, states)
        found.append(
            F.cross_entropy(
                logits.float().transpose(1, 2), y, ignore_index=IGNORED, reduction="none"
            )
        )
    return torch.cat(found, 1)
