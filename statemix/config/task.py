"""Training runs on tasks as data, and the presets and protocols that map one config to another."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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
from statemix.config.model import SIZES, ModelConfig, Size
from statemix.config.sections import Optimisation, Schedule

__all__ = [
    "VERSION",
    "Aids",
    "RunConfig",
    "TaskData",
    "automaton_preset",
    "config_from_dict",
    "mad_preset",
    "paper_protocol",
    "paper_sizes",
    "tracking_preset",
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
_TRACKING_LENGTH = 16
_TRACKING_STAGES = (2, 3, 4, 6, 9, 13, 20, 30, 45, 68, 101)
_WORD_LENGTHS = {"parity": 40, "even_pairs": 40, "cycle_nav": 40, "mod_arith": 39}
_WORD_STAGES = (4, 6, 8, 12, 18, 26)  # tokens, with the empty one at the end
_WORD_STEPS = {"mod_arith": 2500}  # in a stage, before a restart
_INITS = {"compress": "hold", "copy": "select", "recall": "select"}
_MAD_STEPS = {"compress": 4000, "copy": 6000, "recall": 3000}


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
    solved: float = 0.9999
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


def paper_protocol(config: RunConfig) -> RunConfig:
    """The run by the paper's protocol: no BOS token, no early stopping, no training aids.

    The sizes stay; `paper_sizes` sets those of the paper.
    """
    off = {name: _RUN_BASE[name] for name in Aids.__dataclass_fields__}
    return replace(
        config,
        protocol="paper",
        model=replace(config.model, bos=False),
        patience=0,
        solved=2.0,
        warmup=0,
        cooldown=0.0,
        min_lr=1e-5,
        weight_decay=0.0,
        clip=0.0,
        optimiser="adamw",
        **off,
    )


def paper_sizes(config: RunConfig) -> RunConfig:
    """The run with the sizes, epochs and largest learning rate of the paper's models."""
    published = {"swiglu": "published_swiglu", "mlp": "published_mlp"}
    channel: Any = published.get(config.model.channel_mixer, config.model.channel_mixer)
    model = replace(config.model, width=128, channel_mixer=channel)
    return replace(config, model=model, batch=128, epochs=200, max_steps=0, lr=1e-3)


def mad_preset(config: RunConfig) -> RunConfig:
    """The run with a start and a schedule that learn compression, copying and recall in minutes.

    Muon updates the matrices at a constant rate that decays over the last 30 % of the steps. The
    gates of BD-LRU and H-LRU start nearly hard and hold their state, and the positions of the
    autoencoder start smooth. Any other task has the schedule, and the paper's start.
    """
    model = replace(config.model, width=128, bos=False)
    if model.mixer in SIZES and config.task in _INITS:
        model = replace(model, options={**model.options, "init": _INITS[config.task]})
    if config.task == "compress":
        model = replace(model, positions="smooth", position_std=0.1)
    steps = _MAD_STEPS.get(config.task, 4000)
    config = replace(config, model=model, train_examples=20_000, max_steps=steps)
    return replace(
        config,
        epochs=math.ceil(steps / config.steps_per_epoch),
        optimiser="muon",
        lr=2e-3,
        matrix_lr=0.01,
        warmup=20,
        cooldown=0.3,
        min_lr=2e-5,
        patience=0,
    )


def tracking_preset(config: RunConfig) -> RunConfig:
    """The run with every aid that makes learning to track states reliable; the layer is unchanged.

    The aids are a BOS token, a curriculum of growing prefixes, a large constant learning rate with
    restarts, gates that are sharpened in the decay, and a final check on held-out sequences sixteen
    times as long (one token longer if the length is odd: some tasks have odd lengths only).
    """
    length = config.length or _TRACKING_LENGTH
    return replace(
        config,
        model=replace(config.model, channel_mixer="none", bos=True),
        length=length,
        curriculum=tuple(stage for stage in _TRACKING_STAGES if stage < length),
        restart_after=200,
        decay=300,
        sharpen=1.005,
        hold=16 * length + length % 2,
        lr=2e-2,
        warmup=100,
        clip=1.0,
        patience=0,
        solved=2.0,
    )


def automaton_preset(config: RunConfig) -> RunConfig:
    """The run that ends with a model that only copies states, proved right at every length.

    For tasks that ask at every step, this is the tracking preset, but in the decay the gates become
    hard instead of sharper. For tasks with one answer at the end of a word, the gates are hard from
    the start, and the words grow. Either restarts if the model cannot be proved right.
    """
    length = config.length or _WORD_LENGTHS.get(config.task, _TRACKING_LENGTH)
    config = tracking_preset(replace(config, length=length))
    config = replace(config, sharpen=1.0, certify=True)
    if config.task not in _WORD_LENGTHS:
        return replace(config, harden=True)
    options = {**config.model.options, "gate": "hardmax"}
    return replace(
        config,
        model=replace(config.model, options=options),
        curriculum=tuple(stage for stage in _WORD_STAGES if stage <= length),
        stages="words",
        stage_tokens=4096,
        restart_after=_WORD_STEPS.get(config.task, 400),
    )
