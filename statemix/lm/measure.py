"""What a model costs and what it knows: FLOPs, utilisation, and bits on text it has not seen."""

import math
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from statemix.data import Split, collate
from statemix.layers.unit import LinearRecurrentUnit
from statemix.lm.ranks import Ranks, Scored
from statemix.models.lm import LanguageModel

__all__ = ["Quality", "autocast", "flops_per_token", "measure_peak", "measure_quality"]


@dataclass(frozen=True)
class Quality:
    """How well a split is predicted."""

    loss: float
    bits_per_byte: float
    tokens: int

    @property
    def perplexity(self) -> float:
        return math.exp(min(self.loss, 700.0))


def flops_per_token(model: LanguageModel) -> int:
    """Forward and backward, by the usual count: six for each weight of a matrix product and each gate of a recurrence."""
    weights = sum(p.numel() for p in model.parameters()) - (
        0 if model.config.tie else model.embedding.weight.numel()
    )
    units = [module for module in model.modules() if isinstance(module, LinearRecurrentUnit)]
    gates = sum(unit.W_v.out_features * (unit.state_shape[1] + 1) for unit in units)
    return 6 * (weights + gates)


def measure_peak(device: torch.device, *, bf16: bool) -> float:
    """Floating-point operations a second of a large matrix product on this device, with torch's present number of threads."""
    size = 4096 if device.type == "cuda" else 768
    dtype = torch.bfloat16 if bf16 else torch.float32
    a, b, best = (
        torch.randn(size, size, device=device, dtype=dtype),
        torch.randn(size, size, device=device, dtype=dtype),
        math.inf,
    )
    for _ in range(8):
        start = time.perf_counter()
        c = a @ b
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    del c
    return 2 * size**3 / best


def autocast(ranks: Ranks, bf16: bool) -> torch.autocast | nullcontext[None]:
    """bfloat16 inside, if asked for."""
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
    """Predict every token of `split` once, or its first `limit`, in windows of `length`, as in training.

    All ranks call the model equally often, which sharded weights need: one that has nothing left predicts something that is not counted.
    """
    pieces = split.pieces(length, limit)
    groups = [pieces[i : i + batch] for i in range(0, len(pieces), batch)]
    scored.eval()
    total, count = torch.zeros((), dtype=torch.float64, device=ranks.device), 0
    for first in range(0, len(groups), ranks.rows):
        mine = first + ranks.row
        part = ranks.own(collate(groups[mine if mine < len(groups) else 0], reset=reset))
        with autocast(ranks, bf16):
            loss = scored(part.tokens, part.targets, part.cu_seqlens)
        if mine < len(groups):
            total, count = total + loss.double(), count + part.targets.numel()
    scored.train()
    bits, tokens = ranks.total(total, count)
    loss = bits / tokens
    return Quality(
        loss, loss / math.log(2) * split.meta.predictions / split.meta.bytes, int(tokens)
    )
