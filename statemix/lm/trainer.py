"""Training a language model: on one process or many, interrupted anywhere, to the same numbers.

What step s computes is a function of the config and the weights before it, whatever ranks compute it.  A run's directory holds

    config.json      an `LMRunConfig`
    metrics.jsonl    a line for each step, and for each validation
    checkpoints/     the newest few
    final/           the trained model, when it is
    result.json      what it reached
    lock             held by the process that trains it
"""

import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from statemix.data import Split, TokenData, collate
from statemix.data.tokenizer import load_tokenizer
from statemix.data.tokens import META, check_ids, windows_of_step
from statemix.lm.checkpoint import Store
from statemix.lm.claim import CHECKPOINTS, claimed
from statemix.lm.config import Execution, LMRunConfig
from statemix.lm.measure import Quality, autocast, flops_per_token, measure_peak, measure_quality
from statemix.lm.optim import learning_rate, make_optimiser
from statemix.lm.ranks import Ranks, Scored, spread, synchronised
from statemix.lm.result import (
    METRICS,
    RESULT,
    LMResult,
    Metrics,
    StepReport,
    ValidationReport,
    read_result,
)
from statemix.lm.saved import CONFIG as MODEL
from statemix.lm.saved import FINAL, save_model
from statemix.models.lm import LanguageModel, count_parameters
from statemix.train.checkpoint import write_atomically

FIRST_DIGESTS = {
    "426e51dd1b36c906": "5cea3e064435b13c"
}  # the text of results/lm/small.jsonl, named before shards had hashes

Observer = Callable[["LMRun", StepReport | ValidationReport], None]


@dataclass
class LMRun:
    """A run in memory."""

    config: LMRunConfig
    execution: Execution
    ranks: Ranks
    train_split: Split
    validation_split: Split
    scored: Scored
    model: nn.Module  # `scored`, spread over the ranks
    optimiser: torch.optim.Optimizer
    flops: int
    peak: float
    step: int = 0
    seconds: float = 0.0

    @property
    def windows(self) -> int:
        return self.train_split.count(self.config.length)


def digest(data: TokenData) -> str:
    """What identifies a prepared text: its description, in which are hashes of its tokens, and its tokenizer."""
    found = hashlib.sha256(
        (data.directory / META).read_bytes() + data.tokenizer.read_bytes()
    ).hexdigest()[:16]
    return FIRST_DIGESTS.get(found, found)


def start(config: LMRunConfig, execution: Execution, data: TokenData, ranks: Ranks) -> LMRun:
    """Draw the first weights, the same on every rank, and spread them."""
    check(config, execution, data, ranks)
    torch.manual_seed(config.seed)
    scored = Scored(LanguageModel(config.model).to(ranks.device))
    flops = flops_per_token(scored.model)
    model = spread(scored, execution, ranks, bf16=config.bf16)
    peak = execution.peak_flops or measure_peak(ranks.device, bf16=config.bf16)
    splits = data.split("train"), data.split("validation")
    return LMRun(
        config,
        execution,
        ranks,
        *splits,
        scored,
        model,
        make_optimiser(scored, config),
        flops,
        peak,
    )


def check(config: LMRunConfig, execution: Execution, data: TokenData, ranks: Ranks) -> None:
    """The data has sequences of this length and fits the model; the batch divides among ranks."""
    if config.data != digest(data):
        raise ValueError(
            f"The run was begun on another text than {data.directory}. Give the one it was begun on, or another --out."
        )
    if data.meta.vocab > config.model.vocab:
        raise ValueError(
            f"The text in {data.directory} has {data.meta.vocab} different tokens, the model knows {config.model.vocab}."
        )
    check_ids(data.split("validation"), data.meta.vocab)
    data.verify()
    if find_spec("tokenizers") is not None:
        load_tokenizer(
            str(data.tokenizer)
        )  # it is copied beside the trained model, where it must be of use
    if data.split("train").count(config.length) < 1:
        tokens = data.meta.splits["train"].predictions
        raise ValueError(
            f"The training text has {tokens} tokens, too few for one sequence of --length {config.length} in a shard."
        )
    share = ranks.rows * execution.accumulate
    if config.batch % share:
        raise ValueError(
            f"--batch {config.batch} must be a multiple of {share}: {ranks.rows} ranks that read data × {execution.accumulate} parts "
            f"(--accumulate). Try --batch {math.ceil(config.batch / share) * share}."
        )


def train_step(run: LMRun) -> StepReport:
    """One step of the optimiser; the weights stay as they are if anything is not finite."""
    config, ranks, began = run.config, run.ranks, time.perf_counter()
    lr = learning_rate(config, run.step)
    ids = windows_of_step(run.step, config.batch, run.windows, config.seed)
    total = torch.zeros((), device=ranks.device)
    parts = np.array_split(np.split(ids, ranks.rows)[ranks.row], run.execution.accumulate)
    for i, part in enumerate(parts):
        batch = ranks.own(
            collate(
                [run.train_split.window(int(w), config.length) for w in part], reset=config.reset
            )
        )
        with synchronised(run.model, last=i == len(parts) - 1):
            with autocast(ranks, config.bf16):
                loss = run.model(batch.tokens, batch.targets, batch.cu_seqlens)
            (loss * (ranks.size / config.tokens)).backward()
        total += loss.detach()
    norm = clip(run.scored, config.clip)
    loss_of_all = ranks.total(total)[0] / config.tokens
    if not (math.isfinite(loss_of_all) and math.isfinite(norm)):
        raise FloatingPointError(not_finite(run, loss_of_all, norm, ids))
    for group in run.optimiser.param_groups:
        group["lr"] = lr
    run.optimiser.step()
    run.optimiser.zero_grad(set_to_none=True)
    took = time.perf_counter() - began
    run.step += 1
    run.seconds += took
    speed = config.tokens / took
    utilisation = speed * run.flops / (run.peak * ranks.size)
    return StepReport(
        run.step, loss_of_all, lr, norm, run.step * config.tokens, speed, utilisation, run.seconds
    )


def clip(model: nn.Module, largest: float) -> float:
    """Scale gradients to a norm of at most `largest`, if it is not zero; return their norm before."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), largest or math.inf)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def not_finite(run: LMRun, loss: float, norm: float, ids: np.ndarray) -> str:
    what = f"The loss is {loss}" if not math.isfinite(loss) else f"The gradient's norm is {norm}"
    shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
    return f"{what} at step {run.step} (batch {run.step}, windows {shown}). The weights were not changed. Lower --lr, or look at the batch."


def validate(run: LMRun) -> Quality:
    """Predict the held-out text."""
    return measure_quality(
        run.scored,
        run.validation_split,
        run.ranks,
        length=run.config.length,
        batch=max(1, run.config.batch // (run.ranks.rows * run.execution.accumulate)),
        limit=run.execution.validation_tokens,
        reset=run.config.reset,
        bf16=run.config.bf16,
    )


def train_lm(
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    directory: Path,
    ranks: Ranks,
    observer: Observer | None = None,
) -> LMResult:
    """Train the run in `directory`, from its newest checkpoint if it has one; return what it reached."""
    finished = read_result(directory, config)
    if finished is not None and (directory / FINAL / MODEL).is_file():
        return finished
    run = start(config, execution, data, ranks)
    with claimed(directory, config, ranks):
        return train_on(run, data, directory, observer)


def train_on(run: LMRun, data: TokenData, directory: Path, observer: Observer | None) -> LMResult:
    """Train from what is in the run's directory to the end."""
    config, execution = run.config, run.execution
    store = Store(directory / CHECKPOINTS, run.ranks.saving, execution.keep)
    metrics = enter(run, store, directory)

    def tell(report: StepReport | ValidationReport) -> None:
        metrics.append(report)
        if observer is not None:
            observer(run, report)

    try:
        while run.step < config.steps:
            tell(train_step(run))
            due = execution.validate_every and run.step % execution.validate_every == 0
            if due and run.step < config.steps:
                tell(validation_report(run, validate(run)))
            if run.step % execution.save_every == 0 or run.step == config.steps:
                save(run, store)
    except FloatingPointError as error:
        store.wait()
        raise FloatingPointError(
            f"{error} The last good checkpoint is {store.newest() or 'none: no step was saved yet'}."
        ) from None
    store.wait()
    quality = validate(run)
    tell(validation_report(run, quality))
    return finish(run, data, directory, metrics.last_loss, quality)


def save(run: LMRun, store: Store) -> None:
    """Begin to write a checkpoint, if it is one to go on from."""
    if not is_finite(run):
        raise FloatingPointError(f"The weights are not finite after step {run.step}. Lower --lr.")
    store.save(
        run.scored,
        run.optimiser,
        {"step": run.step, "seconds": run.seconds, "config": run.config.id},
    )


def is_finite(run: LMRun) -> bool:
    """Whether all weights of all ranks are finite."""
    own = [p.to_local() if isinstance(p, DTensor) else p for p in run.scored.parameters()]
    found = torch.stack([p.detach().isfinite().all() for p in own]).all()
    return run.ranks.total(~found)[0] == 0


def validation_report(run: LMRun, quality: Quality) -> ValidationReport:
    return ValidationReport(run.step, quality.loss, quality.perplexity, quality.bits_per_byte)


def enter(run: LMRun, store: Store, directory: Path) -> Metrics:
    """Go on from the newest checkpoint of the run, if it has one; return its metrics up to there."""
    checkpoint = store.newest()
    if checkpoint is None and (directory / RESULT).is_file():
        raise ValueError(
            f"The run in {directory} is finished, but {FINAL}/ is missing, and there is no checkpoint to make it from. "
            f"Delete {directory / RESULT} to train again."
        )
    if checkpoint is not None:
        state = store.load(checkpoint, run.scored, run.optimiser, run.config.id)
        run.step, run.seconds = state["step"], state["seconds"]
        if not is_finite(run):
            raise FloatingPointError(
                f"The checkpoint {checkpoint} has weights that are not finite. Delete it to go on from the one before it."
            )
    return Metrics(
        directory / METRICS, writes=run.ranks.rank == 0, step=run.step, steps=run.config.steps
    )


def finish(run: LMRun, data: TokenData, directory: Path, loss: float, quality: Quality) -> LMResult:
    """Write the trained model and the result."""
    tensors = whole_tensors(run.scored.model)
    config = run.config
    parameters = count_parameters(config.model)
    tokens = run.step * config.tokens
    result = LMResult(
        config.id,
        run.step,
        tokens,
        parameters,
        loss,
        quality.loss,
        quality.perplexity,
        quality.bits_per_byte,
        run.seconds,
    )
    if run.ranks.rank == 0:
        noted = {
            "train_length": config.length,
            "end_of_text": data.meta.eot,
            "run": config.id,
            "data": data.meta.source,
        }
        about: dict[str, Any] = {**noted, **asdict(quality)}
        save_model(
            directory / FINAL,
            config.model,
            tensors,
            tokenizer=data.tokenizer,
            about=about,
            replace=True,
        )
        write_atomically(directory / RESULT, (json.dumps(asdict(result)) + "\n").encode())
    return result


def whole_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Every weight, put together from the ranks that hold shares of it."""
    named = model.state_dict(keep_vars=False).items()
    return {
        name: (x.full_tensor() if isinstance(x, DTensor) else x).detach().cpu() for name, x in named
    }
