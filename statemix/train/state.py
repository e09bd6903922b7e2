"""The state of a run: data, model, optimiser and counters, in memory and in a checkpoint."""

import copy
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from statemix.config.build import build
from statemix.config.fields import NON_NEGATIVE
from statemix.config.task import RunConfig, config_from_dict
from statemix.files.json_files import parse_object
from statemix.files.tensors import check_tensors
from statemix.layers.unit import LinearRecurrentUnit
from statemix.models import build_model
from statemix.optim import load_moments, make_optimiser, named_moments
from statemix.proof import Proof
from statemix.proof.step import check_provable
from statemix.runs.checkpoint import load_checkpoint, save_checkpoint, unusable, with_prefix
from statemix.runs.layout import CHECKPOINT
from statemix.tasks import IGNORE, Examples, Task, find_task
from statemix.tasks.task import Tokens
from statemix.train.metrics import Accuracies
from statemix.train.sequences import draw_data

__all__ = [
    "Counters",
    "EpochReport",
    "Run",
    "RunResult",
    "SavedState",
    "harden",
    "is_hard",
    "load_state",
    "make_model",
    "restart",
    "restore",
    "save",
    "start_run",
]


Count = Annotated[int, NON_NEGATIVE]
Seconds = Annotated[float, NON_NEGATIVE]


@dataclass(frozen=True)
class Counters:
    """The progress of a run; `decay_step` is -1 until the decay starts."""

    step: Count = 0
    attempt: Count = 0
    attempt_step: Count = 0
    stage: Count = 0
    stage_step: Count = 0
    decay_step: int = -1
    ended: bool = False
    best_epoch: int = -1
    best_accuracy: float = -1.0
    best_is_hard: bool = False
    since_best: Count = 0
    hits: float = 0.0
    seconds: Seconds = 0.0
    cpu_seconds: Seconds = 0.0


@dataclass(frozen=True)
class EpochReport:
    """Metrics of an epoch: a line of metrics.jsonl."""

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
    """The result of a finished run: accuracies at the selected epoch.

    `held` says whether the held-out longer sequences were right too; None if the run has no `hold`.
    `curve` has steps and validation accuracies on the way, at most fifty of them.
    `certificate` is what was proved about the model, if the run has `certify` and passed.
    """

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
    curve: list[list[float]] = field(default_factory=list)
    certificate: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        for name in ("validation", "test"):
            build(Accuracies, getattr(self, name), name)


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint holds besides tensors; `config` is JSON."""

    config: str
    counters: Counters
    reports: tuple[EpochReport, ...]


@dataclass
class Run:
    """A run in memory."""

    config: RunConfig
    task: Task
    data: dict[str, Examples]
    model: nn.Module
    optimiser: torch.optim.Optimizer
    counters: Counters = field(default_factory=Counters)
    best: dict[str, Tensor] = field(default_factory=dict)
    reports: list[EpochReport] = field(default_factory=list)
    proof: Proof | None = None

    @cached_property
    def ends(self) -> Tokens:
        """The number of tokens of each training sequence (count,) up to its last answer."""
        scored = self.data["train"].targets != IGNORE
        return scored.shape[1] - scored[:, ::-1].argmax(1)

    @property
    def length(self) -> int:
        """The length of the training sequences."""
        return self.data["train"].inputs.shape[1]


def start_run(config: RunConfig) -> Run:
    """Draw the data and the initial weights."""
    task = find_task(config.task, config.task_options)
    data = draw_data(config, task)
    model = make_model(config, task, data["train"].inputs.shape[1], attempt=0)
    if config.certify:
        _check_certifiable(config, task, model)
    return Run(config, task, data, model, make_optimiser(model, config))


def make_model(config: RunConfig, task: Task, length: int, attempt: int) -> nn.Module:
    """A model whose weights are drawn from the seed and the number of the attempt."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1_000_003 * attempt + config.seed)
        model = build_model(config.model, task, length)
    _check_lengths(config, task, model, length)
    return model


def _check_lengths(config: RunConfig, task: Task, model: nn.Module, length: int) -> None:
    """Curriculum stages are no longer than the sequences; the length `hold` fits task and model."""
    if config.curriculum and config.curriculum[-1] > length:
        raise ValueError(
            f"`curriculum` has prefixes of up to {config.curriculum[-1]} tokens, but the sequences "
            f"have {length}. Leave out the longer ones."
        )
    longest = getattr(model, "length", config.hold)
    if config.hold > longest:
        raise ValueError(
            f"`hold` = {config.hold} exceeds the {longest} positions of this model. Set it to 0."
        )
    if config.hold and not task.fits(config.hold):
        raise ValueError(
            f"`hold` = {config.hold} does not fit the task {task.name!r}. "
            f"Lengths that fit: {task.lengths}."
        )


def _check_certifiable(config: RunConfig, task: Task, model: nn.Module) -> None:
    """Raise an error if no model of this run could be proved right."""
    if task.automaton is None:
        raise ValueError(
            f"`certify` = True needs a task with an automaton, but {task.name!r} has none. "
            "`statemix tasks` lists those that have one."
        )
    if config.harden:
        model = copy.deepcopy(model)
        harden(model)
    check_provable(model)


def is_hard(counters: Counters, config: RunConfig) -> bool:
    """True if the gates are hard at this point of the run."""
    return config.harden and counters.decay_step >= 0


def harden(model: nn.Module) -> None:
    """Let the gates of every recurrent unit only copy: each row selects its largest entry."""
    for module in model.modules():
        if isinstance(module, LinearRecurrentUnit):
            module.gate = "hardmax"


def restart(run: Run) -> None:
    """Replace model and optimiser by those of the present attempt."""
    run.model = make_model(run.config, run.task, run.length, run.counters.attempt)
    run.optimiser = make_optimiser(run.model, run.config)


def save(run: Run, directory: Path) -> None:
    """Write a checkpoint."""
    tensors = {f"model.{name}": x for name, x in run.model.state_dict().items()}
    tensors |= {f"best.{name}": x for name, x in run.best.items()}
    moments = named_moments(run.model, run.optimiser)
    tensors |= {f"optimiser.{name}": x for name, x in moments.items()}
    state = {
        "config": run.config.to_json(),
        "counters": asdict(run.counters),
        "reports": [asdict(report) for report in run.reports],
    }
    save_checkpoint(directory / CHECKPOINT, tensors, state)


def restore(run: Run, directory: Path) -> None:
    """Resume from the checkpoint in `directory`."""
    tensors, saved = load_state(directory, run.config)
    try:
        _restore(run, tensors, saved)
    except ValueError as error:
        raise unusable(directory / CHECKPOINT, error) from error


def load_state(directory: Path, config: RunConfig) -> tuple[dict[str, Tensor], SavedState]:
    """The tensors and the state in the checkpoint of a run of `config`."""
    path = directory / CHECKPOINT
    tensors, state = load_checkpoint(path)
    try:
        saved = build(SavedState, state)
        owner = config_from_dict(parse_object(saved.config))
    except ValueError as error:
        raise unusable(path, error) from error
    if owner != config:
        raise ValueError(
            f"The checkpoint in {directory} belongs to another config. "
            "Choose another directory, or delete it."
        )
    return tensors, saved


def _restore(run: Run, tensors: Mapping[str, Tensor], saved: SavedState) -> None:
    """Continue from a checkpoint, after checking its weights and numbers."""
    run.counters = saved.counters
    run.reports = list(saved.reports)
    if len(run.reports) <= run.counters.best_epoch:
        raise ValueError(f"it has no report of the best epoch {run.counters.best_epoch}")
    best = with_prefix(tensors, "best.")
    for weights in (with_prefix(tensors, "model."), *([best] if best else [])):
        check_tensors(weights, run.model.state_dict())
    run.model.load_state_dict(with_prefix(tensors, "model."))
    run.best = best
    if is_hard(run.counters, run.config):
        harden(run.model)
    load_moments(run.model, run.optimiser, with_prefix(tensors, "optimiser."))
