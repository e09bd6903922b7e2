"""One training step of a small model, with our scan and with others."""

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.bench.measure import Contest
from statemix.bench.rivals import Entrant, by_hop_scan, by_loop
from statemix.layers import BDLRU
from statemix.models import ModelConfig, Tagger
from statemix.ops.lookup import Lookup, at_each_step
from statemix.ops.segments import Sequences

__all__ = ["HopScanBDLRU", "LoopBDLRU", "NoScanBDLRU", "step_contest", "training_step"]

_ORDER = 120  # number of elements of S5


class HopScanBDLRU(BDLRU):
    """BDLRU with the paper's parallel scan."""

    states_of = staticmethod(by_hop_scan)

    def scan(
        self, gates: Tensor, v: Tensor, h0: Tensor | None, time: Sequences
    ) -> tuple[Tensor, Tensor]:
        """The states of all steps, and the final ones."""
        h = self.states_of(gates.unflatten(2, self.gate_shape), v.unflatten(2, self.state_shape))
        return h, h[:, -1]


class LoopBDLRU(HopScanBDLRU):
    """BDLRU with a loop in torch."""

    states_of = staticmethod(by_loop)


class NoScanBDLRU(BDLRU):
    """BDLRU without gates and scan; the difference in time is their cost."""

    def forward(  # type: ignore[override]
        self, x: Tensor | Lookup, state: Tensor | None = None, read_from: int = 0
    ) -> tuple[Tensor, Tensor]:
        """The projected values alone, from the step `read_from` on."""
        v = at_each_step(self.W_v, x)
        return self.W_o(v[:, read_from:]), v[:, -1]


def training_step(
    kind: type[BDLRU], blocks: int, m: int, width: int, batch: int, length: int
) -> Entrant:
    """Forward, backward and AdamW of a tagger on S5 whose mixer is `kind`."""
    torch.manual_seed(0)
    config = ModelConfig("bdlru", {"n_blocks": blocks, "block_size": m}, width=width)
    model = Tagger(config, _ORDER, _ORDER)
    model.blocks[0].mixer = kind(width, blocks, m)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    tokens, targets = (torch.randint(_ORDER, (batch, length)) for _ in range(2))

    def step() -> None:
        loss = F.cross_entropy(model(tokens)[0].flatten(0, 1), targets.flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    return step


def step_contest() -> Contest:
    """The S5 model with n = 32, m = 5, width 64, SwiGLU, batch 128, T = 16."""
    sizes = (32, 5, 64, 128, 16)
    kinds = {
        "statemix": BDLRU,
        "hop_scan": HopScanBDLRU,
        "loop": LoopBDLRU,
        "without gates and scan": NoScanBDLRU,
    }
    entrants = {name: training_step(kind, *sizes) for name, kind in kinds.items()}
    return Contest("step", "S5, n = 32, m = 5, width 64, B = 128, T = 16", "statemix", entrants)
