"""Perplexity by position: how well a token is predicted, given the number of tokens before it.

    nats[t] = Σ − log p(x[t] | x[0] .. x[t-1])        over chunks of a text, each from a zero state

A model trained on sequences of 512 tokens should predict the 5,000th token just as well.
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

LOGITS = 2**24  # number of logits held at once


@dataclass(frozen=True)
class Perplexity:
    """The loss at each position in nats, summed over chunks, and the number of tokens there."""

    nats: Tensor
    counts: Tensor
    bytes: int

    def between(self, first: int, last: int) -> float:
        """Perplexity at positions first .. last − 1; NaN if no chunk reaches them."""
        count = self.counts[first:last].sum().item()
        if not count:
            return math.nan
        return math.exp(min(self.nats[first:last].sum().item() / count, 700.0))

    @property
    def bits_per_byte(self) -> float:
        """Loss in bits per byte of the text, which is comparable between tokenizers."""
        return self.nats.sum().item() / math.log(2) / self.bytes

    def spans(self) -> list[tuple[int, int]]:
        """Spans of positions that double in size: 0 .. 15, 16 .. 31, 32 .. 63, up to the last."""
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
    """Cut texts (N,) into chunks of at most `length` tokens, and score each after `start`."""
    chunks = sorted(
        (chunk for text in texts for chunk in text.split(length) if chunk.numel()),
        key=len,
        reverse=True,
    )
    if not chunks or n_bytes < 1:
        raise ValueError("There is no text to measure: it has no tokens.")
    nats = torch.zeros(length, dtype=torch.float64)
    counts = torch.zeros(length, dtype=torch.int64)
    for first in range(0, len(chunks), batch):
        targets = pad_sequence(
            chunks[first : first + batch], batch_first=True, padding_value=IGNORED
        )
        inputs = F.pad(targets[:, :-1].clamp(min=0), (1, 0), value=start)
        real = targets != IGNORED
        nats[: targets.shape[1]] += _losses(model, inputs, targets).double().sum(0)
        counts[: targets.shape[1]] += real.sum(0)
        observe(int(real.sum()))
    return Perplexity(nats, counts, n_bytes)


def _losses(model: LanguageModel, inputs: Tensor, targets: Tensor) -> Tensor:
    """− log p of each target (B, T), 0 for padding; in chunks of time, to limit the memory."""
    size = max(1, LOGITS // (model.config.vocab * inputs.shape[0]))
    states: States | None = None
    found = []
    for x, y in zip(inputs.split(size, 1), targets.split(size, 1), strict=True):
        logits, states = model(x, states)
        logits = logits.float().transpose(1, 2)
        found.append(F.cross_entropy(logits, y, ignore_index=IGNORED, reduction="none"))
    return torch.cat(found, 1)
