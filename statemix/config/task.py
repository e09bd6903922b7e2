"""Training runs on tasks as data."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from statemix.config.build import build
from statemix.config.fields import (
    AT_LEAST_ONE,
    NON_NEGATIVE,
    SHARPENING,
    check_fields,
    check_known,
    differing_fields,
    explain_unknown,
)
from statemix.config.model import ModelConfig, Size
from statemix.config.sections import Optimisation, Schedule

__all__ = [
    "VERSION",
    "Aids",
    "RunConfig",
    "TaskData",
    "config_from_dict",
]

VERSION = 1  # raised when a field changes its meaning
Count = Annotated[int, NON_NEGATIVE]

# Ids hash the fields that differ from these values, which never change: a field that is added later
# gets the value here that leaves older runs as they were.
_MODEL_BASE: dict[str, Any] = {
    "mixer": "bdlru",
    "options": {},
    "width": 128,
    "layers": 1,
    "channel_mixer": "swiglu",
    "bos": True,
    "positions": "normal",
    "position_std": 0.02,
}
_RUN_BASE: dict[str, Any] = {
    "task_options": {},
    "length": None,
    "train_examples": 10_000,
    "test_examples": 1280,
    "protocol": "honest",
    "lr": 1e-3,
    "min_lr": 1e-5,
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "batch": 128,
    "epochs": 200,
    "warmup": 0,
    "clip": 0.0,
    "patience": 40,
    "solved": 0.9999,
    "curriculum": (),
    "stage_steps": 0,
    "restart_after": 0,
    "decay": 0,
    "sharpen": 1.0,
    "max_steps": 0,
    "seed": 0,
    "version": 1,
    "optimiser": "adamw",
    "matrix_lr": 0.02,
    "hold": 0,
    "cooldown": 0.0,
    "harden": False,
    "fresh": False,
    "tested": (),
    "stages": "prefixes",
    "stage_tokens": 2048,
    "certify": False,
    "bf16": False,
}


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """Sequences to train on, and how often they are seen."""

    task_options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the task."""
    length: Annotated[int | None, AT_LEAST_ONE] = None
    """Length of the training sequences; the task's default if None."""
    train_examples: Size = 10_000
    """Number of training sequences."""
    test_examples: Size = 1280
    """Number of validation sequences, and of test sequences."""
    fresh: bool = False
    """Draw new training sequences for every epoch."""
    tested: tuple[int, ...] = ()
    """The shortest and the longest word to validate and test on, for tasks with one answer per word
    (none: as in training)."""
    batch: Size = 128
    """Sequences per step."""
    epochs: Size = 50
    """Largest number of passes over the training sequences."""
    max_steps: Count = 0
    """Stop after this many steps (0: no limit but the epochs)."""
    patience: Count = 40
    """Stop early after this many epochs without a better validation accuracy (0: never)."""
    solved: Annotated[float, NON_NEGATIVE] = 0.9999
    """Stop as soon as the validation accuracy reaches this value (above 1: never)."""


@dataclass(frozen=True, kw_only=True)
class Aids:
    """Training aids beyond the paper's protocol; all are off by default."""

    curriculum: tuple[int, ...] = ()
    """Lengths of the prefixes to train on first. Training moves to the next length once the last
    position of the present one is learned. For S5: 2 3 4 6 9 13."""
    stages: Literal["prefixes", "words"] = "prefixes"
    """Sequences of a curriculum stage. prefixes: all, cut to the stage's length. words: those whose
    last answer comes within that length, for tasks with one answer at the end of a word."""
    stage_tokens: Size = 2048
    """Tokens in a batch of a run with a curriculum."""
    stage_steps: Count = 0
    """Move to the next curriculum stage after at most this many steps (0: only once learned)."""
    restart_after: Count = 0
    """Restart from a new initialisation if a curriculum stage takes more than this many steps after
    the warm-up (0: never)."""
    decay: Count = 0
    """Keep the learning rate constant until full sequences are learned, then decay it linearly over
    this many steps and stop (0: the schedule ends with the last step)."""
    sharpen: Annotated[float, SHARPENING] = 1.0
    """Multiply the raw gates by this factor in every step of the decay. With 1.005, a solution
    holds at a hundred times the training length."""
    harden: bool = False
    """Make the gates hard in the decay: they only copy then, and the model is an automaton."""
    hold: Count = 0
    """After the decay, evaluate on held-out sequences of this length and restart if any final
    answer is wrong (0: skip the check)."""
    certify: bool = False
    """After that check, prove the model right on every word of every length, and restart if this
    fails; needs hard gates and a task with an automaton."""


@explain_unknown
@dataclass(frozen=True)
class RunConfig(Aids, Schedule, Optimisation, TaskData):
    """One training run on a task; `statemix train` has the same fields and defaults."""

    task: str
    """A task that `statemix tasks` lists, or a registered one: s5, copy, parity, ..."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The model to train."""
    protocol: Literal["honest", "paper"] = field(default="honest", kw_only=True)
    """honest: select the epoch on a validation set and report it once on a test set. paper: as
    published, select on the test set, without BOS token and training aids, in the paper's sizes."""
    bf16: bool = field(default=False, kw_only=True)
    """Compute the products of training steps in bfloat16. Weights, states and sums of gradients
    stay float32, and accuracies are measured in float32."""
    seed: Count = field(default=0, kw_only=True)
    """Seed of the data, the initialisation and the order of batches."""
    version: int = field(default=VERSION, kw_only=True)
    """Version of the config format."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("sharpen", "harden", "hold", "certify"):
            if getattr(self, name) > _RUN_BASE[name] and not self.decay:
                raise ValueError(
                    f"`{name}` = {getattr(self, name)} takes effect in the decay, "
                    "but `decay` is 0. Set `decay` to 300, for example."
                )
        increasing = list(self.curriculum) == sorted(self.curriculum)
        if not increasing or any(length < 1 for length in self.curriculum):
            raise ValueError(f"`curriculum` must list increasing lengths, got {self.curriculum}.")
        self._check_lengths()

    def _check_lengths(self) -> None:
        """Raise an error unless `tested` is a range, and `fresh` sequences are used in order."""
        if self.tested and not (len(self.tested) == 2 and 0 < self.tested[0] <= self.tested[1]):
            raise ValueError(
                f"`tested` must have the shortest and the longest length, got {self.tested}."
            )
        if self.fresh and self.curriculum:
            raise ValueError(
                "`fresh` draws new sequences for every epoch, but a curriculum uses the same ones "
                "in all stages. Leave one of them out."
            )

    @property
    def steps_per_epoch(self) -> int:
        """Steps of one pass over the training sequences."""
        return math.ceil(self.train_examples / self.batch)

    @property
    def total_steps(self) -> int:
        """The largest number of steps of the run."""
        total = self.epochs * self.steps_per_epoch
        return min(total, self.max_steps) if self.max_steps else total

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits: a hash of the config."""
        said = differing_fields(asdict(self), _RUN_BASE)
        said["model"] = differing_fields(said["model"], _MODEL_BASE)
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """The config as one line of JSON with sorted keys."""
        return json.dumps(asdict(self), sort_keys=True)


def config_from_dict(data: Mapping[str, Any]) -> RunConfig:
    """The config that `data`, read from JSON, describes."""
    check_known(RunConfig, data, "a run")
    check_known(ModelConfig, data.get("model", {}), "a run's model")
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"The config was written by a newer statemix (version {version}, this one reads "
            f"{VERSION}). Upgrade statemix."
        )
    model = {**_MODEL_BASE, **data.get("model", {})}
    return build(RunConfig, {**_RUN_BASE, **data, "model": model})
