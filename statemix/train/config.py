"""A run, as data: what is trained on what, and how; its id is a hash of all of it."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from statemix.models import ModelConfig

VERSION = 1  # raised when a field changes its meaning
PROTOCOLS = ("honest", "paper")
OPTIMISERS = ("adamw", "muon")
WHOLE_NUMBERS = (
    *(
        "length",
        "train_examples",
        "test_examples",
        "batch",
        "epochs",
        "warmup",
        "patience",
        "stage_steps",
        "restart_after",
        "decay",
    ),
    *("max_steps", "seed", "hold"),
)
NUMBERS = ("lr", "min_lr", "weight_decay", "clip", "solved", "sharpen", "matrix_lr")
TRACKING_LENGTH = 16
TRACKING_STAGES = (2, 3, 4, 6, 9, 13, 20, 30, 45, 68, 101)


@dataclass(frozen=True)
class RunConfig:
    """One training run.

    Args:
        task: a name that `find_task` knows, with its `task_options`.
        length: of training sequences; the task's own if None.
        train_examples: how many; validation and test have `test_examples` each.
        protocol: "honest" chooses the epoch on a validation set and reports it once on a test set; "paper" chooses on the test set.
        lr: where the cosine begins; it ends at `min_lr` after `epochs`.
        warmup: steps of linear warm-up.
        clip: largest norm of a gradient, 0 for any.
        patience: epochs without a better validation accuracy before a run ends early, 0 for never.
        solved: a validation accuracy that ends a run, above 1 for never.
        curriculum: lengths of prefixes to begin with; the next is taken when the last position of a prefix is learnt.
        stage_steps: steps after which the next prefix is taken anyhow, 0 for never.
        restart_after: steps, after the warm-up, in one stage of a curriculum, or without one in all, after which a run begins anew with
            other weights, 0 for never.
        decay: steps in which `lr`, constant till then, goes down to `min_lr` once whole sequences are learnt in training; the run
            then ends, or begins anew if it still makes mistakes.  0 for a cosine over all steps.
        sharpen: factor by which the weights of the gates grow in every step of the decay: rows of softmax come to choose one entry.
        max_steps: stop here at the latest, 0 for all epochs.
        optimiser: "adamw", or "muon" for the matrices inside blocks, whose rate is `matrix_lr` where that of AdamW is `lr`.
        hold: length of fresh sequences, never trained on, whose last answers must all be right when a decay ends; else the run begins
            anew.  0 for no such test.
    """

    task: str
    model: ModelConfig = field(default_factory=ModelConfig)
    task_options: Mapping[str, Any] = field(default_factory=dict)
    length: int | None = None
    train_examples: int = 10_000
    test_examples: int = 1280
    protocol: str = "honest"
    lr: float = 1e-3
    min_lr: float = 1e-5
    weight_decay: float = 0.0
    batch: int = 128
    epochs: int = 200
    warmup: int = 0
    clip: float = 0.0
    patience: int = 40
    solved: float = 0.9999
    curriculum: tuple[int, ...] = ()
    stage_steps: int = 0
    restart_after: int = 0
    decay: int = 0
    sharpen: float = 1.0
    max_steps: int = 0
    seed: int = 0
    version: int = VERSION
    optimiser: str = "adamw"
    matrix_lr: float = 0.02
    hold: int = 0

    def __post_init__(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise ValueError(
                f"Unknown protocol {self.protocol!r}. Available: {', '.join(PROTOCOLS)}."
            )
        if self.optimiser not in OPTIMISERS:
            raise ValueError(
                f"Unknown optimiser {self.optimiser!r}. Available: {', '.join(OPTIMISERS)}."
            )
        check_numbers(self)
        if not 1.0 <= self.sharpen < 2.0:
            raise ValueError(f"`sharpen` must be at least 1 and below 2, got {self.sharpen}.")
        if self.sharpen > 1.0 and not self.decay:
            raise ValueError(
                f"`sharpen` = {self.sharpen} acts in the steps of `decay`, which has none. Set `decay`, to 300 perhaps."
            )
        if self.hold and not self.decay:
            raise ValueError(
                f"`hold` = {self.hold} is looked at when a `decay` ends, which has no steps. Set `decay`, to 300 perhaps."
            )
        if list(self.curriculum) != sorted(self.curriculum) or any(
            length < 1 for length in self.curriculum
        ):
            raise ValueError(f"`curriculum` must list growing lengths, got {self.curriculum}.")

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that no other config has; a field that is added later, at its default, leaves them as they are."""
        said = without_defaults(self) | {"model": without_defaults(self.model)}
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """One line, keys sorted."""
        return json.dumps(asdict(self), sort_keys=True)


def check_numbers(config: RunConfig) -> None:
    """Sizes are whole numbers of at least one, counts not negative, rates above zero; NaN is no number."""
    for name in NUMBERS:
        if not isinstance(getattr(config, name), int | float) or math.isnan(getattr(config, name)):
            raise ValueError(f"`{name}` must be a number, got {getattr(config, name)!r}.")
    for name in WHOLE_NUMBERS:
        if not isinstance(getattr(config, name), int) and not (
            name == "length" and config.length is None
        ):
            raise ValueError(f"`{name}` must be a whole number, got {getattr(config, name)!r}.")
    for name in ("train_examples", "test_examples", "batch", "epochs"):
        if getattr(config, name) < 1:
            raise ValueError(f"`{name}` must be at least 1, got {getattr(config, name)}.")
    for name in (
        "weight_decay",
        "warmup",
        "clip",
        "patience",
        "stage_steps",
        "restart_after",
        "decay",
        "max_steps",
        "seed",
        "hold",
    ):
        if not getattr(config, name) >= 0:
            raise ValueError(f"`{name}` must not be negative, got {getattr(config, name)}.")
    if config.length is not None and config.length < 1:
        raise ValueError(f"`length` must be at least 1, got {config.length}.")
    if math.isinf(config.weight_decay):
        raise ValueError(f"`weight_decay` must be finite, got {config.weight_decay}.")
    for name in ("lr", "min_lr", "matrix_lr"):
        if not 0 < getattr(config, name) < math.inf:
            raise ValueError(
                f"`{name}` must be above zero and finite, got {getattr(config, name)}."
            )


def without_defaults(config: Any) -> dict[str, Any]:
    """The fields of a dataclass that differ from their defaults."""
    plain = asdict(type(config)(config.task) if isinstance(config, RunConfig) else type(config)())
    return {
        name: value
        for name, value in asdict(config).items()
        if name == "task" or value != plain[name]
    }


def config_from_dict(data: Mapping[str, Any]) -> RunConfig:
    """The config that `data`, read from JSON, describes."""
    if not isinstance(data, Mapping) or not isinstance(data.get("model", {}), Mapping):
        raise ValueError(
            f"A config must be a JSON object whose model is one too, got {str(data)[:60]}."
        )
    version = data.get("version", VERSION)
    if version > VERSION:
        raise ValueError(
            f"The config was written by a newer statemix (version {version}, this one reads {VERSION}). Upgrade statemix."
        )
    for kind, given in ((RunConfig, data), (ModelConfig, data.get("model", {}))):
        known = {f.name for f in fields(kind)}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(
                f"Unknown fields of a config: {', '.join(unknown)}. Available: {', '.join(sorted(known))}."
            )
    values = dict(data)
    values["model"] = ModelConfig(**values.get("model", {}))
    values["curriculum"] = tuple(values.get("curriculum", ()))
    return RunConfig(**values)


def paper_protocol(config: RunConfig) -> RunConfig:
    """The same run as the paper describes it, whose runs had 200 epochs: no BOS, no early stop, no curriculum."""
    model = replace(config.model, bos=False)
    return replace(
        config,
        protocol="paper",
        model=model,
        patience=0,
        solved=2.0,
        curriculum=(),
        stage_steps=0,
        restart_after=0,
        decay=0,
        sharpen=1.0,
        warmup=0,
        clip=0.0,
        optimiser="adamw",
        hold=0,
    )


def tracking_preset(config: RunConfig) -> RunConfig:
    """The same run with every aid that makes learning to track states reliable; the layer stays as it is.

    A BOS token, prefixes that grow by half, a large constant rate with restarts, gates that are sharpened while it decays, and a look at
    sequences sixteen times as long before it ends, one token longer if the length is odd, since some tasks have odd lengths only.
    """
    length = config.length or TRACKING_LENGTH
    stages = tuple(stage for stage in TRACKING_STAGES if stage < length)
    model = replace(config.model, channel_mixer="none", bos=True)
    aids = replace(
        config,
        model=model,
        length=length,
        curriculum=stages,
        restart_after=200,
        decay=300,
        sharpen=1.005,
    )
    return replace(
        aids, hold=16 * length + length % 2, lr=2e-2, warmup=100, clip=1.0, patience=0, solved=2.0
    )
