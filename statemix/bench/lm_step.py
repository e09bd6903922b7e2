"""One optimiser step of language models of about two million parameters.

BD-LRU, BD-LRU on the paper's scan, an LSTM and a transformer (presets), and the Mamba and Mamba-2
of transformers. Without their CUDA kernels, these may take hours, or more memory than there is, so
that a first step of more than 512 tokens runs in a separate process.
"""

import math
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from statemix.bench.foreign import FOREIGN
from statemix.bench.measure import Contest, TooSlow
from statemix.bench.rivals import Entrant
from statemix.bench.step import HopScanBDLRU
from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.layers import BDLRU
from statemix.lm.ranks import Scored
from statemix.models.lm import LanguageModel, LMBlock
from statemix.models.presets import find_preset
from statemix.optim import make_optimiser

__all__ = ["LENGTH", "MODELS", "lm_contest"]

_BATCH = 8
LENGTH = 512
_OURS = "BD-LRU, m = 4"
_PRESETS = {_OURS: "2m-bdlru-m4", "nn.LSTM": "2m-lstm", "transformer": "2m-attention"}
_HOP = "BD-LRU on hop_scan"
MODELS = (*_PRESETS, _HOP, "transformers Mamba", "transformers Mamba-2")

_Loss = Callable[[Tensor, Tensor], Tensor]


def _step(
    model: nn.Module,
    loss: _Loss,
    optimiser: torch.optim.Optimizer,
    shape: tuple[int, int, int],
    bf16: bool,
) -> Entrant:
    """A training step: forward, backward, clipping and AdamW.

    Args:
        loss: the mean loss from tokens and targets.
        shape: vocabulary, batch and length.
        bf16: run the forward pass in bfloat16 autocast.
    """
    vocab, *sizes = shape
    torch.manual_seed(0)
    tokens, targets = (torch.randint(vocab, sizes) for _ in range(2))

    def step() -> float:
        with torch.autocast(tokens.device.type, torch.bfloat16, enabled=bf16):
            mean = loss(tokens, targets)
        mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return float(mean.detach())

    return step


def _preset_step(config: LMConfig, batch: int, length: int, bf16: bool, *, hop: bool) -> Entrant:
    """A step of one of our models; with `hop`, BD-LRU runs on the paper's scan."""
    torch.manual_seed(0)
    scored = Scored(LanguageModel(config))
    if hop:
        for block in scored.model.blocks:
            mixer = cast(BDLRU, cast(LMBlock, block).mixer)
            other = HopScanBDLRU(config.width, *mixer.state_shape)
            other.load_state_dict(mixer.state_dict())
            cast(LMBlock, block).mixer = other
    optimiser = make_optimiser(scored, LMRunConfig(config, data="", optimiser="adamw"))

    def loss(tokens: Tensor, targets: Tensor) -> Tensor:
        return scored(tokens, targets) / targets.numel()

    return _step(scored, loss, optimiser, (config.vocab, batch, length), bf16)


def _foreign_step(name: str, batch: int, length: int, bf16: bool) -> Entrant:
    """A step of a model of another package."""
    torch.manual_seed(0)
    foreign = FOREIGN[name]("2m")
    optimiser = torch.optim.AdamW(foreign.model.parameters(), lr=3e-3, fused=True)
    vocab = find_preset(_PRESETS[_OURS]).vocab
    return _step(foreign.model, foreign.loss, optimiser, (vocab, batch, length), bf16)


def _try_in_process(name: str, batch: int, length: int, bf16: bool, seconds: float) -> None:
    """Run a step of a model of another package in a process that ends after CPU `seconds`."""
    arguments = (name, batch, length, bf16, seconds, torch.get_num_threads())
    process = multiprocessing.get_context("spawn").Process(target=_one_step, args=arguments)
    process.start()
    process.join()
    if process.exitcode == -signal.SIGXCPU:
        raise TooSlow(seconds)
    if process.exitcode:
        raise RuntimeError(
            f"a step failed in its process with exit code {process.exitcode} "
            "(-9: there was too little memory)"
        )


def _one_step(name: str, batch: int, length: int, bf16: bool, seconds: float, threads: int) -> None:
    """The process: the first to be ended if memory runs out."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    torch.set_num_threads(threads)
    step = _foreign_step(name, batch, length, bf16)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if seconds < math.inf:
        end = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (end, end + 1))
    step()


def _entrant(
    name: str, batch: int, length: int, vocab: int | None, bf16: bool, limit: float
) -> Entrant:
    if name in FOREIGN:
        if batch * length > LENGTH:
            _try_in_process(name, batch, length, bf16, limit)
        return _foreign_step(name, batch, length, bf16)
    config = find_preset(_PRESETS.get(name, _PRESETS[_OURS]))
    config = config if vocab is None else replace(config, vocab=vocab)
    return _preset_step(config, batch, length, bf16, hop=name == _HOP)


def lm_contest(
    batch: int = _BATCH,
    length: int = LENGTH,
    vocab: int | None = None,
    *,
    models: tuple[str, ...] = MODELS,
    bf16: bool = False,
    limit: float = math.inf,
) -> Contest:
    """The contest between `models`, all of the same number of parameters; ours always takes part.

    Args:
        vocab: a smaller vocabulary for our presets.
        limit: CPU seconds that a step of another package may take with more than 512 tokens.
    """
    names = dict.fromkeys((_OURS, *models))
    entrants = {
        name: _lazily(partial(_entrant, name, batch, length, vocab, bf16, limit)) for name in names
    }
    dtype = ", bf16" if bf16 else ""
    return Contest("lm", f"2M parameters, B = {batch}, T = {length}{dtype}", _OURS, entrants)


def _lazily(make: Callable[[], Entrant]) -> Entrant:
    """An entrant that is built by its first call, so that one that cannot be is left out."""
    built: list[Entrant] = []

    def call() -> object:
        if not built:
            built.append(make())
        return built[0]()

    return call
