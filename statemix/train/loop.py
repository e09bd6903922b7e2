"""Training one run from its config, so that it can stop anywhere and resume to the same bits.

Everything random is a function of the seed and the step: a checkpoint holds weights, moments and
counters, but no generator. Checkpoints are written after an epoch, at most every few seconds.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix.config.task import RunConfig
from statemix.files.writing import write_atomically
from statemix.models.tagger import Tagger
from statemix.optim import scheduled_rate, set_learning_rate, warmup_decay
from statemix.runs.layout import CHECKPOINT, CONFIG, METRICS, RESULT
from statemix.runs.metrics import Metrics
from statemix.runs.result import DamagedResult
from statemix.runs.result import read_result as read_result_file
from statemix.tasks import IGNORE
from statemix.train.aids import advance, prefix_length
from statemix.train.batches import next_batch
from statemix.train.finish import finish
from statemix.train.metrics import first_scored, measure_accuracy
from statemix.train.sequences import draw_fresh
from statemix.train.state import (
    Counters,
    EpochReport,
    Run,
    RunResult,
    is_hard,
    restore,
    save,
    start_run,
)

__all__ = ["Observer", "read_result", "train", "train_step"]

CHECKPOINT_SECONDS = 5.0

Observer = Callable[[Run, EpochReport], None]


def train(
    config: RunConfig, directory: Path, *, resume: bool = True, observer: Observer | None = None
) -> RunResult:
    """Train in `directory`, resuming from its checkpoint if there is one; return the result."""
    finished = read_result(config, directory) if resume else None
    if finished is not None:
        return finished
    run = _open_run(config, directory, resume=resume)
    metrics = Metrics(directory / METRICS, [asdict(report) for report in run.reports])
    saved = time.perf_counter()
    while not _is_over(run):
        report = _train_epoch(run)
        metrics.append(report)
        if time.perf_counter() - saved > CHECKPOINT_SECONDS:
            save(run, directory)
            saved = time.perf_counter()
        if observer is not None:
            observer(run, report)
    return finish(run, directory)


def read_result(config: RunConfig, directory: Path) -> RunResult | None:
    """The result in `directory`, if the run is finished; a damaged one is renamed."""
    try:
        return read_result_file(RunResult, directory, config.id)
    except DamagedResult:
        with suppress(FileNotFoundError):
            (directory / RESULT).rename(directory / f"{RESULT}.damaged")
        return None


def _open_run(config: RunConfig, directory: Path, *, resume: bool) -> Run:
    """A new run, or the one that the checkpoint in `directory` holds."""
    directory.mkdir(parents=True, exist_ok=True)
    run = start_run(config)
    if not resume:
        (directory / RESULT).unlink(missing_ok=True)
        (directory / CHECKPOINT).unlink(missing_ok=True)
    elif (directory / CHECKPOINT).exists():
        restore(run, directory)
    write_atomically(directory / CONFIG, config.to_json().encode())
    return run


def _is_over(run: Run) -> bool:
    """True if all steps are done, the task is solved, or validation has stopped improving."""
    counters = run.counters
    config = run.config
    if counters.step >= config.total_steps or config.decay:
        return counters.ended or counters.step >= config.total_steps
    if prefix_length(run) < run.length:
        return False
    return counters.best_accuracy >= config.solved or 0 < config.patience <= counters.since_best


def _train_epoch(run: Run) -> EpochReport:
    """One pass over the training sequences, or what is left of the run, and an evaluation."""
    config = run.config
    started = _clocks()
    if config.fresh:
        run.data["train"] = draw_fresh(config, run.task, len(run.reports))
    losses = []
    accuracies = []
    for _ in range(min(config.steps_per_epoch, config.total_steps - run.counters.step)):
        loss, accuracy, last = train_step(run)
        losses.append(loss)
        accuracies.append(accuracy)
        advance(run, accuracy, last)
        if run.counters.ended:
            break
    return end_epoch(run, float(np.mean(losses)), float(np.mean(accuracies)), started)


def train_step(run: Run) -> tuple[float, float, float]:
    """One step: the loss, the accuracy of the batch, and that of its last position."""
    inputs, targets = next_batch(run)
    scored = targets != IGNORE
    if not scored.any():
        raise ValueError(
            f"The task {run.task.name!r} scores none of the first {inputs.shape[1]} positions. "
            "Start the curriculum with longer prefixes."
        )
    set_learning_rate(run.optimiser, learning_rate(run.config, run.counters))
    first = first_scored(targets)
    scored = scored[:, first:]
    asked = targets[:, first:][scored]
    with torch.autocast("cpu", torch.bfloat16, enabled=run.config.bf16):
        logits = _logits_at(run.model, inputs, first, scored)
    loss = F.cross_entropy(logits.float(), asked)
    run.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if run.config.clip > 0:
        nn.utils.clip_grad_norm_(run.model.parameters(), run.config.clip)
    run.optimiser.step()
    if not math.isfinite(loss.item()):
        raise FloatingPointError(
            f"The loss of run {run.config.id} is {loss.item()} at step {run.counters.step}. "
            "Lower the learning rate, or clip the gradient."
        )
    right = scored.clone()
    right[scored] = logits.detach().argmax(-1) == asked
    return loss.item(), _mean(right, scored), _mean(right[:, -1], scored[:, -1])


def _logits_at(model: nn.Module, inputs: Tensor, first: int, scored: Tensor) -> Tensor:
    """Logits (N, classes) of the N steps that are scored, among those from `first` on."""
    at = {"read_at": scored} if isinstance(model, Tagger) else {}
    logits: Tensor = model(inputs, read_from=first, **at)[0]
    return logits if at else logits[scored]


def _mean(right: Tensor, scored: Tensor) -> float:
    return right.sum().item() / max(1, int(scored.sum()))


def learning_rate(config: RunConfig, counters: Counters) -> float:
    """The learning rate of the current step.

    With `decay`, it is constant until the sequences are learned, and then decays linearly.
    """
    total = config.total_steps
    if not config.decay:
        return scheduled_rate(config, config.lr, counters.step, total, total)
    return warmup_decay(
        counters.attempt_step,
        lr=config.lr,
        min_lr=config.min_lr,
        warmup=config.warmup_steps(total),
        decay_step=counters.decay_step,
        decay=config.decay,
    )


def _clocks() -> tuple[float, float]:
    """Wall time, and CPU time of this process."""
    return time.perf_counter(), time.process_time()


def end_epoch(run: Run, loss: float, train: float, started: tuple[float, float]) -> EpochReport:
    """Evaluate, and keep the weights if they are the best so far."""
    config = run.config
    validation = measure_accuracy(run.model, run.data["validation"], run.task.classes)
    test = None
    if config.protocol == "paper":
        test = measure_accuracy(run.model, run.data["test"], run.task.classes)
    _select(run, validation.token if test is None else test.macro)
    wall, cpu = _clocks()
    run.counters = replace(
        run.counters,
        seconds=run.counters.seconds + wall - started[0],
        cpu_seconds=run.counters.cpu_seconds + cpu - started[1],
    )
    report = EpochReport(
        epoch=len(run.reports),
        step=run.counters.step,
        loss=loss,
        lr=learning_rate(config, run.counters),
        length=prefix_length(run),
        train=train,
        validation=validation.token,
        validation_sequence=validation.sequence,
        test=None if test is None else test.token,
        seconds=run.counters.seconds,
    )
    run.reports.append(report)
    return report


def _select(run: Run, accuracy: float) -> None:
    """Keep the present weights if `accuracy` is the best so far; of equals, the latest are kept."""
    counters = run.counters
    since_best = 0 if accuracy > counters.best_accuracy else counters.since_best + 1
    # Weights that passed the held-out check win, even if others are as good at this length.
    held = counters.ended and run.config.hold > 0
    if held or accuracy >= counters.best_accuracy:
        run.best = {name: x.detach().clone() for name, x in run.model.state_dict().items()}
        counters = replace(
            counters,
            best_epoch=len(run.reports),
            best_accuracy=accuracy,
            best_is_hard=is_hard(counters, run.config),
        )
    run.counters = replace(counters, since_best=since_best)
