"""Training one run, from its config alone, so that it can stop anywhere and go on to the same bits.

Everything random is a function of the seed and the step, so a checkpoint holds weights, optimiser and counters, and no generator.  It is
written at the end of an epoch, no more often than every few seconds.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix.layers.unit import LinearRecurrentUnit
from statemix.tasks import IGNORE, shared_inputs
from statemix.train.checkpoint import write_atomically
from statemix.train.config import RunConfig
from statemix.train.metrics import Accuracy, all_end_right, measure_accuracy
from statemix.train.state import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    RESULT,
    Counters,
    EpochReport,
    Run,
    RunResult,
    make_model,
    make_optimiser,
    restore,
    save,
    start_run,
    write_metrics,
)

CHECKPOINT_SECONDS = 5.0
WATCHED_STEPS = 25  # after which the accuracy in training is looked at
STAGE_ACCURACY, LEARNT_ACCURACY, CERTAIN = (
    0.9,
    0.99,
    0.9999,
)  # for the next stage, for the decay, for the end


Observer = Callable[[Run, EpochReport], None]


def clocks() -> tuple[float, float]:
    """Wall time, and the processor's time in this process."""
    return time.perf_counter(), time.process_time()


def learning_rate(config: RunConfig, counters: Counters, total: int) -> float:
    """Linear warm-up; then a cosine from `lr` to `min_lr`, or, with `decay`, a constant until that begins, and a line."""
    step = counters.attempt_step if config.decay else counters.step
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    if config.decay:
        return config.lr + (config.min_lr - config.lr) * max(0, counters.decay_step) / config.decay
    progress = (step - config.warmup) / max(1, total - config.warmup)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (
        1 + math.cos(math.pi * min(1.0, progress))
    )


def batch_of(run: Run) -> tuple[Tensor, Tensor]:
    """The batch of the present step: the next of its epoch's order, or, in a curriculum, prefixes of examples drawn anew."""
    config, counters, train = run.config, run.counters, run.data["train"]
    if config.curriculum:
        length = prefix_length(run)
        rng = np.random.default_rng([config.seed, counters.attempt, counters.step])
        rows = rng.integers(0, len(train), min(512, max(1, 2048 // length)))
        return torch.from_numpy(train.inputs[rows, :length]), torch.from_numpy(
            train.targets[rows, :length]
        )
    epoch, place = divmod(counters.step, run.steps_per_epoch)
    order = np.random.default_rng([config.seed, epoch]).permutation(len(train))
    rows = order[place * config.batch : (place + 1) * config.batch]
    return torch.from_numpy(train.inputs[rows]), torch.from_numpy(train.targets[rows])


def prefix_length(run: Run) -> int:
    """How much of each sequence the present stage of the curriculum shows."""
    whole, stages = run.data["train"].inputs.shape[1], run.config.curriculum
    return min(whole, stages[run.counters.stage]) if run.counters.stage < len(stages) else whole


def train_step(run: Run) -> tuple[float, float, float]:
    """One step: the loss, the accuracy of the batch, and that of its last position."""
    inputs, targets = batch_of(run)
    if not (targets != IGNORE).any():
        raise ValueError(
            f"No position of the first {inputs.shape[1]} is scored in the task {run.task.name!r}. Begin the curriculum later."
        )
    rate = learning_rate(run.config, run.counters, run.total_steps)
    for group in run.optimiser.param_groups:
        group["lr"] = rate
    logits, _ = run.model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
    run.optimiser.zero_grad(set_to_none=True)
    loss.backward()
    if run.config.clip > 0:
        nn.utils.clip_grad_norm_(run.model.parameters(), run.config.clip)
    run.optimiser.step()
    right, scored = logits.detach().argmax(-1) == targets, targets != IGNORE
    accuracy = (right & scored).sum().item() / max(1, int(scored.sum()))
    last = (right[:, -1] & scored[:, -1]).sum().item() / max(1, int(scored[:, -1].sum()))
    value = loss.item()
    if not math.isfinite(value):
        raise FloatingPointError(
            f"The loss of run {run.config.id} is {value} at step {run.counters.step}. Try a smaller lr, or set clip."
        )
    return value, accuracy, last


def advance(run: Run, accuracy: float, last: float) -> None:
    """Count the step; every few steps take the next stage of the curriculum, begin to decay, end, or begin anew, where that is due."""
    config, counters = run.config, run.counters
    if counters.decay_step >= 0 and config.sharpen > 1.0:
        sharpen(run.model, config.sharpen)
    counters = replace(
        counters,
        step=counters.step + 1,
        attempt_step=counters.attempt_step + 1,
        stage_step=counters.stage_step + 1,
        decay_step=counters.decay_step + (counters.decay_step >= 0),
        hits=counters.hits + (last if counters.stage < len(config.curriculum) else accuracy),
    )
    if counters.attempt_step % WATCHED_STEPS == 0:
        judged = judge(config, counters, counters.hits / WATCHED_STEPS)
        run.counters = replace(
            anew(judged) if judged.ended and not holds(run) else judged, hits=0.0
        )
        if run.counters.attempt > counters.attempt:
            run.model = make_model(
                config, run.task, run.data["train"].inputs.shape[1], run.counters.attempt
            )
            run.optimiser = make_optimiser(config, run.model)
    else:
        run.counters = counters


def judge(config: RunConfig, counters: Counters, accuracy: float) -> Counters:
    """What follows from the mean accuracy of the last steps: of a prefix's last position, or of whole sequences after all stages."""
    if counters.decay_step >= 0:
        if counters.decay_step < config.decay or not config.decay:
            return counters
        return replace(counters, ended=True) if accuracy >= CERTAIN else anew(counters)
    if counters.stage < len(config.curriculum):
        if accuracy > STAGE_ACCURACY or 0 < config.stage_steps <= counters.stage_step:
            return replace(counters, stage=counters.stage + 1, stage_step=0)
    elif accuracy > LEARNT_ACCURACY:
        return replace(counters, decay_step=0)
    allowed = config.restart_after + (config.warmup if counters.stage == 0 else 0)
    return (
        anew(counters) if config.restart_after > 0 and counters.stage_step >= allowed else counters
    )


def holds(run: Run) -> bool:
    """Whether the last answer of every longer sequence, which training has never shown, is right; True where no length was asked for."""
    return not run.config.hold or all_end_right(run.model, run.data["hold"])


def anew(counters: Counters) -> Counters:
    """The next attempt, from its first step."""
    return replace(
        counters,
        attempt=counters.attempt + 1,
        attempt_step=0,
        stage=0,
        stage_step=0,
        decay_step=-1,
        ended=False,
    )


def sharpen(model: nn.Module, factor: float) -> None:
    """Let the raw gates of every recurrent unit grow."""
    for module in model.modules():
        if isinstance(module, LinearRecurrentUnit):
            module.sharpen(factor)


def end_epoch(run: Run, loss: float, train: float, started: tuple[float, float]) -> EpochReport:
    """Evaluate; remember the best weights so far."""
    counters, config = run.counters, run.config
    validation = measure_accuracy(run.model, run.data["validation"], run.task.classes)
    test = (
        measure_accuracy(run.model, run.data["test"], run.task.classes)
        if config.protocol == "paper"
        else None
    )
    chosen = validation.token if test is None else test.macro
    epoch = len(run.reports)
    since_best = 0 if chosen > counters.best_accuracy else counters.since_best + 1
    held = counters.ended and config.hold > 0  # others may be as good at this length, and not last
    if (
        held or chosen >= counters.best_accuracy
    ):  # of equals the latest, which has been trained longer
        run.best = {name: x.detach().clone() for name, x in run.model.state_dict().items()}
        counters = replace(counters, best_epoch=epoch, best_accuracy=chosen)
    counters = replace(counters, since_best=since_best)
    seconds, cpu_seconds = (now - then for now, then in zip(clocks(), started, strict=True))
    run.counters = replace(
        counters, seconds=counters.seconds + seconds, cpu_seconds=counters.cpu_seconds + cpu_seconds
    )
    rate = learning_rate(config, counters, run.total_steps)
    report = EpochReport(
        epoch,
        counters.step,
        loss,
        rate,
        prefix_length(run),
        train,
        validation.token,
        validation.sequence,
        None if test is None else test.token,
        run.counters.seconds,
    )
    run.reports.append(report)
    return report


def is_over(run: Run) -> bool:
    """Whether all steps are done, the task is solved, or nothing has got better for long."""
    counters, config = run.counters, run.config
    if counters.step >= run.total_steps or config.decay:
        return counters.ended or counters.step >= run.total_steps
    if prefix_length(run) < run.data["train"].inputs.shape[1]:
        return False
    return counters.best_accuracy >= config.solved or 0 < config.patience <= counters.since_best


def train(
    config: RunConfig, directory: Path, *, resume: bool = True, observer: Observer | None = None
) -> RunResult:
    """Train to the end in `directory`, going on from its checkpoint if there is one; return and write the result."""
    finished = read_result(config, directory) if resume else None
    if finished is not None:
        return finished
    directory.mkdir(parents=True, exist_ok=True)
    run = start_run(config)
    if not resume:
        (directory / RESULT).unlink(missing_ok=True)  # nobody may take it for what is trained now
        (directory / CHECKPOINT).unlink(missing_ok=True)
    elif (directory / CHECKPOINT).exists():
        restore(run, directory)
    write_atomically(directory / CONFIG, config.to_json().encode())
    write_metrics(run, directory)
    saved = time.perf_counter()
    while not is_over(run):
        started, losses, accuracies = clocks(), [], []
        for _ in range(min(run.steps_per_epoch, run.total_steps - run.counters.step)):
            loss, accuracy, last = train_step(run)
            losses.append(loss)
            accuracies.append(accuracy)
            advance(run, accuracy, last)
            if run.counters.ended:
                break
        report = end_epoch(run, float(np.mean(losses)), float(np.mean(accuracies)), started)
        with (directory / METRICS).open("a") as lines:
            lines.write(json.dumps(asdict(report)) + "\n")
        if time.perf_counter() - saved > CHECKPOINT_SECONDS:
            save(run, directory)
            saved = time.perf_counter()
        if observer is not None:
            observer(run, report)
    return finish(run, directory)


def read_result(config: RunConfig, directory: Path) -> RunResult | None:
    """The result of a run that has ended in `directory`; one that cannot be read is put aside."""
    path = directory / RESULT
    if not path.exists():
        return None
    try:
        result = RunResult(**json.loads(path.read_text()))
    except (json.JSONDecodeError, TypeError):
        path.rename(path.with_name(f"{RESULT}.damaged"))
        return None
    if result.id != config.id:
        raise ValueError(
            f"{directory} holds the result of another config, {result.id}. Choose another directory, or delete it."
        )
    return result


def finish(run: Run, directory: Path) -> RunResult:
    """Evaluate the chosen weights once, and write everything."""
    save(run, directory)
    chosen = make_model(run.config, run.task, run.data["train"].inputs.shape[1], attempt=0)
    chosen.load_state_dict(run.best)
    validation, test = (
        measure_accuracy(chosen, run.data[name], run.task.classes)
        for name in ("validation", "test")
    )
    best = run.reports[run.counters.best_epoch]
    result = RunResult(
        id=run.config.id,
        steps=run.counters.step,
        epochs=len(run.reports),
        best_epoch=run.counters.best_epoch,
        restarts=run.counters.attempt,
        parameters=sum(p.numel() for p in run.model.parameters()),
        train=best.train,
        validation=as_numbers(validation),
        test=as_numbers(test),
        shared_inputs=shared_inputs(run.data),
        seconds=run.counters.seconds,
        cpu_seconds=run.counters.cpu_seconds,
        held=run.counters.ended if run.config.hold else None,
    )
    write_atomically(directory / RESULT, json.dumps(asdict(result)).encode())
    return result


def as_numbers(accuracy: Accuracy) -> dict[str, float]:
    return {"token": accuracy.token, "macro": accuracy.macro, "sequence": accuracy.sequence}
