"""A language-model run in memory, and one step of it.

The result of a step depends only on the config and on the weights before it, not on the number of
ranks that compute it.
"""

import hashlib
import math
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

from statemix.config.lm import Execution, LMRunConfig
from statemix.data import Split, TokenData, collate, open_data
from statemix.data.batches import Batch, windows_of_step
from statemix.data.tokenizer import load_tokenizer
from statemix.data.tokens import META, check_ids
from statemix.layers.unit import LinearRecurrentUnit
from statemix.lm.measure import autocast, flops_per_token, measure_peak
from statemix.lm.ranks import Ranks, Scored, spread, synchronised
from statemix.lm.result import StepReport
from statemix.models.lm import LanguageModel
from statemix.optim import make_optimiser, scheduled_rate, set_learning_rate
from statemix.optim.muon import is_sharded

__all__ = ["LMRun", "digest", "has_finite_weights", "learning_rate", "start", "train_step"]

# Texts that were prepared before shards had hashes: current digest to original digest.
FIRST_DIGESTS = {"426e51dd1b36c906": "5cea3e064435b13c"}


@dataclass
class LMRun:
    """A run in memory; `model` is `scored`, wrapped for the ranks that train it together."""

    config: LMRunConfig
    execution: Execution
    ranks: Ranks
    train_split: Split
    validation_split: Split
    scored: Scored
    model: nn.Module
    optimiser: torch.optim.Optimizer
    flops: int
    peak: float
    step: int = 0
    seconds: float = 0.0
    last_loss: float = math.nan


def digest(data: TokenData) -> str:
    """A hash of a prepared text: of data.json, which has hashes of the tokens, and tokenizer."""
    described = (data.directory / META).read_bytes() + data.tokenizer.read_bytes()
    found = hashlib.sha256(described).hexdigest()[:16]
    return FIRST_DIGESTS.get(found, found)


def find_text(root: Path, wanted: str) -> TokenData:
    """The prepared text under `root` whose digest is `wanted`."""
    for meta in sorted(root.glob(f"*/{META}")):
        data = open_data(meta.parent)
        if digest(data) == wanted:
            return data
    raise FileNotFoundError(
        f"No directory in {root} holds the prepared text {wanted}. Prepare it with `statemix lm "
        "prepare`, or give the directory that contains it with --data."
    )


def start(config: LMRunConfig, execution: Execution, data: TokenData, ranks: Ranks) -> LMRun:
    """Draw the initial weights, the same on every rank, and wrap the model for the ranks."""
    _check(config, execution, data, ranks)
    torch.manual_seed(config.seed)
    fresh = LanguageModel(config.model).to(ranks.device)
    scored = Scored(fresh, data.meta.eot, config.answers)
    flops = flops_per_token(scored.model, config.length)
    model = spread(scored, execution, ranks, bf16=config.bf16)
    return LMRun(
        config=config,
        execution=execution,
        ranks=ranks,
        train_split=data.split("train"),
        validation_split=data.split("validation"),
        scored=scored,
        model=model,
        optimiser=make_optimiser(scored, config),
        flops=flops,
        peak=execution.peak_flops or measure_peak(ranks.device, bf16=config.bf16),
    )


def _check(config: LMRunConfig, execution: Execution, data: TokenData, ranks: Ranks) -> None:
    """The data is intact and fits the config; the batch divides among the ranks."""
    if config.data != digest(data):
        raise ValueError(
            f"The run was started on another text than {data.directory}. "
            "Pass the text it was started on, or another --out."
        )
    if data.meta.vocab > config.model.vocab:
        raise ValueError(
            f"The text in {data.directory} has {data.meta.vocab} different tokens, but the "
            f"vocabulary of the model has {config.model.vocab}."
        )
    check_ids(data.split("validation"), data.meta.vocab)
    data.verify()
    if find_spec("tokenizers") is not None:
        load_tokenizer(str(data.tokenizer))  # the trained model gets a copy, which must be readable
    if data.split("train").count(config.length) < 1:
        tokens = data.meta.splits["train"].predictions
        raise ValueError(
            f"The training text has {tokens} tokens, too few for one sequence of --length "
            f"{config.length} in a shard."
        )
    share = ranks.rows * execution.accumulate
    if config.batch % share:
        raise ValueError(
            f"--batch {config.batch} must be a multiple of {share}: {ranks.rows} ranks that read "
            f"data × {execution.accumulate} parts (--accumulate). "
            f"Try --batch {math.ceil(config.batch / share) * share}."
        )


def learning_rate(config: LMRunConfig, step: int) -> float:
    """The learning rate of a step; the schedule ends at the last one."""
    return scheduled_rate(config, config.lr, step, config.steps, config.steps - 1)


def train_step(run: LMRun) -> StepReport:
    """One optimiser step; the weights stay unchanged if loss or gradient are not finite."""
    config = run.config
    began = time.perf_counter()
    lr = learning_rate(config, run.step)
    windows = run.train_split.count(config.length)
    shuffle = config.order == "shuffled"
    ids = windows_of_step(run.step, config.batch, windows, config.seed, shuffle=shuffle)
    loss = run.ranks.total(_accumulate_gradients(run, ids))[0] / config.tokens
    norm = _clip(run.scored, config.clip)
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise FloatingPointError(_describe_divergence(run, loss, norm, ids))
    set_learning_rate(run.optimiser, lr)
    run.optimiser.step()
    run.optimiser.zero_grad(set_to_none=True)
    if config.sharpen > 1.0 and run.step >= config.steps * (1 - config.cooldown):
        _sharpen(run.scored, config.sharpen)
    took = time.perf_counter() - began
    run.step += 1
    run.seconds += took
    run.last_loss = loss
    return StepReport(
        step=run.step,
        loss=loss,
        lr=lr,
        gradient=norm,
        tokens=run.step * config.tokens,
        tokens_per_second=config.tokens / took,
        utilisation=config.tokens / took * run.flops / (run.peak * run.ranks.size),
        seconds=run.seconds,
    )


def _accumulate_gradients(run: LMRun, ids: np.ndarray) -> torch.Tensor:
    """Backward passes over this rank's part of the batch; the sum of their losses."""
    config = run.config
    ranks = run.ranks
    total = torch.zeros((), device=ranks.device)
    parts = np.array_split(np.split(ids, ranks.rows)[ranks.row], run.execution.accumulate)
    for i, part in enumerate(parts):
        batch = _read_batch(run, part)
        with synchronised(run.model, last=i == len(parts) - 1):
            with autocast(ranks, config.bf16):
                loss = run.model(batch.tokens, batch.targets, batch.cu_seqlens)
            (loss * (ranks.size / config.tokens)).backward()
        total += loss.detach()
    return total


def _read_batch(run: LMRun, ids: np.ndarray) -> Batch:
    windows = [run.train_split.window(int(i), run.config.length) for i in ids]
    return run.ranks.own(collate(windows, reset=run.config.reset))


def _sharpen(model: nn.Module, factor: float) -> None:
    """Multiply the raw gates of every BD-LRU and H-LRU by `factor`."""
    for module in model.modules():
        if isinstance(module, LinearRecurrentUnit):
            module.sharpen(factor)


def _clip(model: nn.Module, largest: float) -> float:
    """Clip the gradient norm to `largest` unless it is 0; return the norm before."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest or math.inf)
    return float(norm.full_tensor() if is_sharded(norm) else norm)


def _describe_divergence(run: LMRun, loss: float, norm: float, ids: np.ndarray) -> str:
    what = f"The gradient norm is {norm}" if math.isfinite(loss) else f"The loss is {loss}"
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    return (
        f"{what} at step {run.step} (batch {run.step}, windows {shown}). The weights were not "
        "changed. Lower --lr, or look at the batch."
    )


def has_finite_weights(run: LMRun) -> bool:
    """True if all weights on all ranks are finite."""
    local = [p.to_local() if is_sharded(p) else p for p in run.scored.parameters()]
    finite = torch.stack([p.detach().isfinite().all() for p in local]).all()
    return run.ranks.total(~finite)[0] == 0
