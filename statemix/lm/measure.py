"""Measure a model: its FLOPs, the peak FLOP/s of the device, and its loss on held-out text."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from statemix.data import Split, collate
from statemix.layers.baselines import Attention
from statemix.layers.unit import LinearRecurrentUnit
from statemix.lm.ranks import Ranks, Scored
from statemix.models.lm import LanguageModel

__all__ = ["Quality", "autocast", "flops_per_token", "measure_peak", "measure_quality"]


@dataclass(frozen=True)
class Quality:
    """Loss on a split, in nats per token and in bits per byte."""

    loss: float
    bits_per_byte: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


def flops_per_token(model: LanguageModel, length: int) -> int:
    """Forward and backward at this length: six FLOPs for each product that a token takes part in.

    There is one product for each weight of a matrix, for each gate, and for each entry of the keys
    and values that attention reads, averaged over the steps of a sequence.
    """
    weights = sum(p.numel() for p in model.parameters())
    if not model.config.tie:
        weights -= model.embedding.weight.numel()  # a lookup
    products = 0.0
    for module in model.modules():
        if isinstance(module, LinearRecurrentUnit):
            products += module.W_v.out_features * (module.state_shape[1] + 1)
        elif isinstance(module, Attention):
            products += 2 * module.d_model * _steps_seen(length, module.window or length)
    return round(6 * (weights + products))


def _steps_seen(length: int, window: int) -> float:
    """Number of steps that a query sees, averaged over a sequence."""
    full = min(window, length)
    return full - full * (full - 1) / 2 / length


def measure_peak(device: torch.device, *, bf16: bool) -> float:
    """FLOP/s of a large matrix product on this device, with the current number of threads."""
    size = 4096 if device.type == "cuda" else 768
    dtype = torch.bfloat16 if bf16 else torch.float32
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    best = math.inf
    for _ in range(8):
        start = time.perf_counter()
        c = a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    del c
    return 2 * size**3 / best


def autocast(ranks: Ranks, bf16: bool) -> torch.autocast | nullcontext[None]:
    """A context in bfloat16, or one that changes nothing."""
    return torch.autocast(ranks.device.type, dtype=torch.bfloat16) if bf16 else nullcontext()


@torch.no_grad()
def measure_quality(
    scored: Scored | nn.Module,
    split: Split,
    ranks: Ranks,
    *,
    length: int,
    batch: int,
    limit: int,
    reset: bool,
    bf16: bool,
) -> Quality:
    """Predict every token of `split` once, or the first `limit`, in windows of `length`.

    Sharded weights require that all ranks call the model equally often. A rank without a batch of
    its own therefore runs one that is not counted.
    """
    pieces = split.pieces(length, limit)
    groups = [pieces[i : i + batch] for i in range(0, len(pieces), batch)]
    scored.eval()
    total = torch.zeros((), dtype=torch.float64, device=ranks.device)
    count = 0
    for first in range(0, len(groups), ranks.rows):
        mine = first + ranks.row
        part = ranks.own(collate(groups[mine if mine < len(groups) else 0], reset=reset))
        with autocast(ranks, bf16):
            loss = scored(part.tokens, part.targets, part.cu_seqlens)
        if mine < len(groups):
            total += loss.double()
            count += part.targets.numel()
    scored.train()
    nats, tokens = ranks.total(total, count)
    loss = nats / tokens
    bits_per_byte = loss / math.log(2) * split.meta.predictions / split.meta.bytes
    return Quality(loss, bits_per_byte, int(tokens))
