"""Training one run, from its config alone, so that it can stop anywhere and go on to the same bits.

Everything random is a function of the seed and the step, so a checkpoint holds weights, optimiser and counters, and no generator.  It is
written at the end of an epoch, no more often than every few seconds.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix.models import build_model
from statemix.tasks import IGNORE, Examples, Task, find_task, shared_inputs, split_examples
from statemix.train.checkpoint import load_checkpoint, save_checkpoint, write_atomically
from statemix.train.config import RunConfig
from statemix.train.metrics import Accuracy, measure_accuracy

CHECKPOINT, METRICS, CONFIG, RESULT = "checkpoint.safetensors", "metrics.jsonl", "config.json", "result.json"
CHECKPOINT_SECONDS = 5.0
CURRICULUM_STEPS, CURRICULUM_ACCURACY = 50, 0.9
RESTART_ACCURACY = 0.99


@dataclass(frozen=True)
class Counters:
    """Where a run stands; a checkpoint holds them as JSON."""

    step: int = 0
    attempt: int = 0
    attempt_step: int = 0
    stage: int = 0
    best_epoch: int = -1
    best_accuracy: float = -1.0
    since_best: int = 0
    hits: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class EpochReport:
    """What is known after an epoch: a line of metrics.jsonl."""

    epoch: int
    step: int
    loss: float
    lr: float
    length: int
    train: float
    validation: float
    validation_sequence: float
    test: float | None
    seconds: float


@dataclass(frozen=True)
class RunResult:
    """What a finished run reports: accuracies at the chosen epoch."""

    id: str
    steps: int
    epochs: int
    best_epoch: int
    restarts: int
    parameters: int
    train: float
    validation: dict[str, float]
    test: dict[str, float]
    shared_inputs: int
    seconds: float


@dataclass
class Run:
    """A run in memory: data, model, optimiser, counters."""

    config: RunConfig
    task: Task
    data: dict[str, Examples]
    model: nn.Module
    optimiser: torch.optim.Optimizer
    counters: Counters = field(default_factory=Counters)
    best: dict[str, Tensor] = field(default_factory=dict)
    reports: list[EpochReport] = field(default_factory=list)

    @property
    def steps_per_epoch(self) -> int:
        return math.ceil(self.config.train_examples / self.config.batch)

    @property
    def total_steps(self) -> int:
        total = self.config.epochs * self.steps_per_epoch
        return min(total, self.config.max_steps) if self.config.max_steps else total


Observer = Callable[[Run, EpochReport], None]


def start_run(config: RunConfig) -> Run:
    """Draw the data and the first weights."""
    task = find_task(config.task, config.task_options)
    length = config.length or task.length
    counts = {"train": config.train_examples, "validation": config.test_examples, "test": config.test_examples}
    data = split_examples(task, counts, length, config.seed)
    model = make_model(config, task, data["train"].inputs.shape[1], attempt=0)
    return Run(config, task, data, model, make_optimiser(config, model))


def make_model(config: RunConfig, task: Task, length: int, attempt: int) -> nn.Module:
    """Weights drawn from the seed and the number of the attempt."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000_003 * attempt + config.seed)
        return build_model(config.model, task, length)


def make_optimiser(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=config.weight_decay)


def learning_rate(config: RunConfig, step: int, total: int) -> float:
    """Linear warm-up, then a cosine from `lr` to `min_lr`."""
    if step < config.warmup:
        return config.lr * (step + 1) / config.warmup
    progress = (step - config.warmup) / max(1, total - config.warmup)
    return config.min_lr + (config.lr - config.min_lr) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def batch_of(run: Run) -> tuple[Tensor, Tensor]:
    """The batch of the present step: the next of its epoch's order, or, in a curriculum, prefixes of examples drawn anew."""
    config, counters, train = run.config, run.counters, run.data["train"]
    if config.curriculum:
        length = prefix_length(run)
        rng = np.random.default_rng([config.seed, counters.attempt, counters.step])
        rows = rng.integers(0, len(train), min(512, max(1, 2048 // length)))
        return torch.from_numpy(train.inputs[rows, :length]), torch.from_numpy(train.targets[rows, :length])
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
    rate = learning_rate(run.config, run.counters.step, run.total_steps)
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
        raise FloatingPointError(f"The loss of run {run.config.id} is {value} at step {run.counters.step}. Try a smaller lr, or set clip.")
    return value, accuracy, last


def advance(run: Run, accuracy: float, last: float) -> None:
    """Count the step; take the next stage of the curriculum, or begin anew, where that is due."""
    counters, config = run.counters, run.config
    watched = last if config.curriculum and counters.stage < len(config.curriculum) else accuracy
    counters = replace(counters, step=counters.step + 1, attempt_step=counters.attempt_step + 1, hits=counters.hits + watched)
    if counters.attempt_step % CURRICULUM_STEPS == 0:
        mean = counters.hits / CURRICULUM_STEPS
        grows = counters.stage < len(config.curriculum) and mean > CURRICULUM_ACCURACY
        counters = replace(counters, hits=0.0, stage=counters.stage + grows)
        finished = counters.stage >= len(config.curriculum) and mean > RESTART_ACCURACY
        if config.restart_after and counters.attempt_step >= config.restart_after and not finished:
            counters = replace(counters, attempt=counters.attempt + 1, attempt_step=0, stage=0)
            run.model = make_model(config, run.task, run.data["train"].inputs.shape[1], counters.attempt)
            run.optimiser = make_optimiser(config, run.model)
    run.counters = counters


def end_epoch(run: Run, loss: float, train: float, started: float) -> EpochReport:
    """Evaluate; remember the best weights so far."""
    counters, config = run.counters, run.config
    validation = measure_accuracy(run.model, run.data["validation"], run.task.classes)
    test = measure_accuracy(run.model, run.data["test"], run.task.classes) if config.protocol == "paper" else None
    chosen = validation.token if test is None else test.macro
    epoch = len(run.reports)
    since_best = 0 if chosen > counters.best_accuracy else counters.since_best + 1
    if chosen >= counters.best_accuracy:  # of equals the latest, which has been trained longer
        run.best = {name: x.detach().clone() for name, x in run.model.state_dict().items()}
        counters = replace(counters, best_epoch=epoch, best_accuracy=chosen)
    counters = replace(counters, since_best=since_best)
    run.counters = replace(counters, seconds=counters.seconds + time.perf_counter() - started)
    rate = learning_rate(config, counters.step, run.total_steps)
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
    if counters.step >= run.total_steps:
        return True
    if prefix_length(run) < run.data["train"].inputs.shape[1]:
        return False
    return counters.best_accuracy >= config.solved or 0 < config.patience <= counters.since_best


def train(config: RunConfig, directory: Path, *, resume: bool = True, observer: Observer | None = None) -> RunResult:
    """Train to the end in `directory`, going on from its checkpoint if there is one; return and write the result."""
    finished = directory / RESULT
    if resume and finished.exists():
        return RunResult(**json.loads(finished.read_text()))
    directory.mkdir(parents=True, exist_ok=True)
    run = start_run(config)
    if resume and (directory / CHECKPOINT).exists():
        restore(run, directory)
    write_atomically(directory / CONFIG, config.to_json().encode())
    write_metrics(run, directory)
    saved = time.perf_counter()
    while not is_over(run):
        started, losses, accuracies = time.perf_counter(), [], []
        for _ in range(min(run.steps_per_epoch, run.total_steps - run.counters.step)):
            loss, accuracy, last = train_step(run)
            losses.append(loss)
            accuracies.append(accuracy)
            advance(run, accuracy, last)
        report = end_epoch(run, float(np.mean(losses)), float(np.mean(accuracies)), started)
        with (directory / METRICS).open("a") as lines:
            lines.write(json.dumps(asdict(report)) + "\n")
        if time.perf_counter() - saved > CHECKPOINT_SECONDS:
            save(run, directory)
            saved = time.perf_counter()
        if observer is not None:
            observer(run, report)
    return finish(run, directory)


def finish(run: Run, directory: Path) -> RunResult:
    """Evaluate the chosen weights once, and write everything."""
    save(run, directory)
    chosen = make_model(run.config, run.task, run.data["train"].inputs.shape[1], attempt=0)
    chosen.load_state_dict(run.best)
    validation, test = (measure_accuracy(chosen, run.data[name], run.task.classes) for name in ("validation", "test"))
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
    )
    write_atomically(directory / RESULT, json.dumps(asdict(result)).encode())
    return result


def as_numbers(accuracy: Accuracy) -> dict[str, float]:
    return {"token": accuracy.token, "macro": accuracy.macro, "sequence": accuracy.sequence}


def save(run: Run, directory: Path) -> None:
    """Write a checkpoint."""
    tensors = {f"model.{name}": x for name, x in run.model.state_dict().items()}
    tensors |= {f"best.{name}": x for name, x in run.best.items()}
    for index, moments in run.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": x for name, x in moments.items()}
    state = {"config": run.config.to_json(), "counters": asdict(run.counters), "reports": [asdict(report) for report in run.reports]}
    save_checkpoint(directory / CHECKPOINT, tensors, state)


def restore(run: Run, directory: Path) -> None:
    """Go back to the checkpoint of `directory`."""
    tensors, state = load_checkpoint(directory / CHECKPOINT)
    if state["config"] != run.config.to_json():
        raise ValueError(f"The checkpoint in {directory} belongs to another config. Choose another directory, or delete it.")
    run.counters = Counters(**state["counters"])
    run.reports = [EpochReport(**report) for report in state["reports"]]
    run.model.load_state_dict(with_prefix(tensors, "model."))
    run.best = with_prefix(tensors, "best.")
    moments: dict[int, dict[str, Any]] = {}
    for name, x in with_prefix(tensors, "optimiser.").items():
        index, key = name.split(".", 1)
        moments.setdefault(int(index), {})[key] = x
    run.optimiser.load_state_dict({**run.optimiser.state_dict(), "state": moments})


def with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}


def write_metrics(run: Run, directory: Path) -> None:
    """Metrics of the epochs that the checkpoint knows; what a killed process wrote after it is computed again."""
    lines = "".join(json.dumps(asdict(report)) + "\n" for report in run.reports)
    write_atomically(directory / METRICS, lines.encode())
