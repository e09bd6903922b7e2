"""One optimiser step of a language model: BD-LRU, BD-LRU on the paper's scan, and an LSTM.

All three have about two million parameters.
"""

from dataclasses import replace
from typing import cast

import torch

from statemix.bench.measure import Contest
from statemix.bench.rivals import Entrant
from statemix.bench.step import HopScanBDLRU
from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.layers import BDLRU
from statemix.lm.ranks import Scored
from statemix.models.lm import LanguageModel, LMBlock
from statemix.models.presets import find_preset
from statemix.optim import make_optimiser

__all__ = ["LENGTH", "lm_contest"]

_BATCH = 8
LENGTH = 512


def _lm_step(config: LMConfig, batch: int, length: int, *, hop: bool = False) -> Entrant:
    """A training step: forward, backward, clipping and AdamW.

    Args:
        hop: compute BD-LRU by the paper's scan.
    """
    torch.manual_seed(0)
    tokens, targets = (torch.randint(config.vocab, (batch, length)) for _ in range(2))
    scored = Scored(LanguageModel(config))
    if hop:
        for block in scored.model.blocks:
            mixer = cast(BDLRU, cast(LMBlock, block).mixer)
            other = HopScanBDLRU(config.width, *mixer.state_shape)
            other.load_state_dict(mixer.state_dict())
            cast(LMBlock, block).mixer = other
    optimiser = make_optimiser(scored, LMRunConfig(config, data="", optimiser="adamw"))

    def step() -> float:
        loss = scored(tokens, targets) / targets.numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(scored.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(loss.detach())

    return step


def lm_contest(batch: int = _BATCH, length: int = LENGTH, vocab: int | None = None) -> Contest:
    """The contest between the presets 2m-bdlru-m4, on both scans, and 2m-lstm."""
    ours = find_preset("2m-bdlru-m4")
    lstm = find_preset("2m-lstm")
    if vocab is not None:
        ours = replace(ours, vocab=vocab)
        lstm = replace(lstm, vocab=vocab)
    entrants = {
        "BD-LRU, m = 4": _lm_step(ours, batch, length),
        "nn.LSTM": _lm_step(lstm, batch, length),
        "BD-LRU on hop_scan": _lm_step(ours, batch, length, hop=True),
    }
    return Contest("lm", f"2M parameters, B = {batch}, T = {length}", "BD-LRU, m = 4", entrants)
