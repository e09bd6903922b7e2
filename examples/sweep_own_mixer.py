"""A sweep with a mixer of your own: a leaky sum against BD-LRU, on products of permutations.

    statemix sweep examples/sweep_own_mixer.py --ledger mine.jsonl

A file that registers a mixer and yields configs is an experiment. The command trains what the
ledger lacks, on all cores, and prints a table by mixer.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from statemix import block_scan, register_mixer
from statemix.models import ModelConfig
from statemix.train import RunConfig

MIXERS = {
    "leaky_sum": {},
    "bdlru": {"n_blocks": 8, "block_size": 3},
}


@register_mixer("leaky_sum")
class LeakySum(nn.Module):
    """h[t] = λ ⊙ h[t-1] + x[t], with a decay λ for each channel."""

    def __init__(self, d_model: int, start: float = 2.0) -> None:
        super().__init__()
        self.state_size = d_model
        self.decay = nn.Parameter(torch.full((d_model,), start))

    def forward(
        self,
        x: Tensor,
        state: Tensor | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        A = torch.sigmoid(self.decay)[..., None, None].expand(*x.shape, 1, 1)  # (B, T, n, 1, 1)
        h0 = None if state is None else state[..., None]
        h, final = block_scan(A, x[..., None], h0, cu_seqlens=cu_seqlens, mask=mask)
        return h[..., 0], final[..., 0]

    def step(self, x_t: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        h = x_t if state is None else torch.sigmoid(self.decay) * state + x_t
        return h, h


def cells() -> Iterator[RunConfig]:
    for mixer, options in MIXERS.items():
        for seed in range(2):
            model = ModelConfig(mixer=mixer, options=options, width=32)
            yield RunConfig("s3", model, train_examples=4_000, epochs=6, seed=seed)
