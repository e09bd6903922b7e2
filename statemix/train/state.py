"""The state of a run: in memory, and in the directory that holds it."""

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from statemix.models import build_model
from statemix.tasks import Examples, Task, find_task, split_examples
from statemix.train.checkpoint import load_checkpoint, save_checkpoint, write_atomically
from statemix.train.config import RunConfig, config_from_dict
from statemix.train.muon import Muon, is_inner_matrix

HELD_TOKENS = (
    1 << 19
)  # how many tokens of the length `hold` are looked at: what is lost once in so many does not show in fewer
CHECKPOINT, METRICS, CONFIG, RESULT = (
    "checkpoint.safetensors",
    "metrics.jsonl",
    "config.json",
    "result.json",
)


@dataclass(frozen=True)
class Counters:
    """Where a run stands; a checkpoint holds them as JSON.  `decay_step` is -1 until the decay begins."""

    step: int = 0
    attempt: int = 0
    attempt_step: int = 0
    stage: int = 0
    stage_step: int = 0
    decay_step: int = -1
    ended: bool = False
    best_epoch: int = -1
    best_accuracy: float = -1.0
    since_best: int = 0
    hits: float = 0.0
    seconds: float = 0.0
    cpu_seconds: float = 0.0


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
    """What a finished run reports: accuracies at the chosen epoch, and with `hold` whether longer sequences were right too."""

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
    cpu_seconds: float
    held: bool | None = None


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


def start_run(config: RunConfig) -> Run:
    """Draw the data and the first weights."""
    task = find_task(config.task, config.task_options)
    length = config.length or task.length
    counts = {
        "train": config.train_examples,
        "validation": config.test_examples,
        "test": config.test_examples,
    }
    data = split_examples(task, counts, length, config.seed)
    if config.hold:
        data["hold"] = task.examples(
            -(-HELD_TOKENS // config.hold),
            config.hold,
            np.random.default_rng([config.seed, config.hold, 1]),
        )
    model = make_model(config, task, data["train"].inputs.shape[1], attempt=0)
    return Run(config, task, data, model, make_optimiser(config, model))


def make_model(config: RunConfig, task: Task, length: int, attempt: int) -> nn.Module:
    """Weights drawn from the seed and the number of the attempt."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000_003 * attempt + config.seed)
        model = build_model(config.model, task, length)
    check_lengths(config, task, model, length)
    return model


def check_lengths(config: RunConfig, task: Task, model: nn.Module, length: int) -> None:
    """Prefixes are no longer than sequences; those of the length `hold` exist, and fit into the model."""
    if config.curriculum and config.curriculum[-1] > length:
        raise ValueError(
            f"`curriculum` has prefixes of up to {config.curriculum[-1]} tokens, but sequences have {length}. Leave them out."
        )
    longest = getattr(model, "length", config.hold)
    if config.hold > longest:
        raise ValueError(
            f"`hold` = {config.hold} is more than the {longest} positions of this model. Set it to 0."
        )
    if config.hold and not task.fits(config.hold):
        raise ValueError(
            f"`hold` = {config.hold} does not fit the task {task.name!r}. Lengths that fit: {task.lengths}."
        )


def make_optimiser(config: RunConfig, model: nn.Module) -> torch.optim.Optimizer:
    """AdamW, or Muon for the matrices inside blocks and AdamW for all else."""
    settings: dict[str, Any] = {
        "lr": config.lr,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "weight_decay": config.weight_decay,
        "fused": True,
    }
    if config.optimiser == "adamw":
        return torch.optim.AdamW(model.parameters(), **settings)
    named = list(model.named_parameters())
    inner = {
        "params": [p for name, p in named if is_inner_matrix(name, p)],
        "matrices": True,
        "scale": config.matrix_lr / config.lr,
    }
    others = {"params": [p for name, p in named if not is_inner_matrix(name, p)], "matrices": False}
    return Muon([inner, others], **settings)


def save(run: Run, directory: Path) -> None:
    """Write a checkpoint."""
    tensors = {f"model.{name}": x for name, x in run.model.state_dict().items()}
    tensors |= {f"best.{name}": x for name, x in run.best.items()}
    for index, moments in run.optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{index}.{name}": x for name, x in moments.items()}
    state = {
        "config": run.config.to_json(),
        "counters": asdict(run.counters),
        "reports": [asdict(report) for report in run.reports],
    }
    save_checkpoint(directory / CHECKPOINT, tensors, state)


def restore(run: Run, directory: Path) -> None:
    """Go back to the checkpoint of `directory`."""
    tensors, state = load_checkpoint(directory / CHECKPOINT)
    if config_from_dict(json.loads(state["config"])) != run.config:
        raise ValueError(
            f"The checkpoint in {directory} belongs to another config. Choose another directory, or delete it."
        )
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
