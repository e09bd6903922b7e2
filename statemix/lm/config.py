"""A language-model run, as data: what is trained on what, and how it is computed.

`LMRunConfig` decides the numbers; its id is a hash of all of it.  `Execution` decides who computes them, and may change from one call
to the next: a run begun on one machine goes on on eight ranks.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from statemix.models.lm import LMConfig, lm_config_from_dict
from statemix.train.config import OPTIMISERS

VERSION = 1  # raised when a field changes its meaning
PARALLEL = ("ddp", "fsdp")
LATER = (
    "optimiser",
    "matrix_lr",
)  # fields that the first runs did not have; their defaults must stay


@dataclass(frozen=True)
class LMRunConfig:
    """One run.

    Args:
        model: sizes; its vocabulary is the data's.
        data: a digest of the prepared text.
        length: tokens T of a sequence.
        batch: sequences of a step, over all ranks.
        lr: where the cosine begins after the warm-up; it ends at `min_lr`.
        warmup: share of the steps in which the learning rate rises from zero.
        weight_decay: not on biases and norms.
        clip: largest norm of a gradient, 0 for any.
        optimiser: "adamw", or "muon" for the matrices inside blocks, with `matrix_lr` where AdamW has `lr`.
        reset: begin every document with a fresh state.
        bf16: compute in bfloat16; weights, states and sums stay in float32.
    """

    model: LMConfig
    data: str
    length: int = 512
    batch: int = 16
    steps: int = 1000
    lr: float = 3e-3
    min_lr: float = 1e-5
    warmup: float = 0.1
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    clip: float = 1.0
    reset: bool = True
    bf16: bool = False
    seed: int = 0
    version: int = VERSION
    optimiser: str = "adamw"
    matrix_lr: float = 0.02

    def __post_init__(self) -> None:
        if self.optimiser not in OPTIMISERS:
            raise ValueError(
                f"Unknown optimiser {self.optimiser!r}. Available: {', '.join(OPTIMISERS)}."
            )
        for name in ("lr", "min_lr", "matrix_lr", "weight_decay", "clip"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"`{name}` must be finite, got {getattr(self, name)}.")
        for name in ("length", "batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name in ("weight_decay", "clip", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must not be negative, got {getattr(self, name)}.")
        for name in ("lr", "min_lr", "matrix_lr"):
            if not getattr(self, name) > 0:
                raise ValueError(f"`{name}` must be above zero, got {getattr(self, name)}.")
        for name in ("warmup", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be in [0, 1), got {getattr(self, name)}.")

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits that no other config has; a field that came later counts where it is not its default."""
        data = json.loads(self.to_json())
        unchanged = [f.name for f in fields(self) if f.name in LATER and data[f.name] == f.default]
        for name in unchanged:
            del data[name]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def tokens(self) -> int:
        """Tokens that a step predicts."""
        return self.batch * self.length

    def to_json(self) -> str:
        """One line, keys sorted."""
        return json.dumps({**asdict(self), "model": self.model.to_dict()}, sort_keys=True)


@dataclass(frozen=True)
class Execution:
    """Who computes a run, and what is kept on the way.

    Args:
        parallel: "ddp" holds the model on every rank, "fsdp" a share of it (FSDP2).
        context: ranks that share each sequence; the number of all ranks is a multiple of it.
        accumulate: parts that a rank's batch is computed in, one after the other.
        compile: let torch.compile fuse each block.
        checkpointing: compute blocks again in the backward pass instead of keeping what is inside them.
        save_every: steps between checkpoints.
        keep: checkpoints that are kept.
        validate_every: steps between validations, 0 for one at the end.
        validation_tokens: how many to validate on, 0 for all.
        timeout: seconds after which a rank that waits for another gives up.
        peak_flops: floating-point operations a second of a rank, for utilisation; a matrix product is timed if 0.
    """

    parallel: str = "ddp"
    context: int = 1
    accumulate: int = 1
    compile: bool = False
    checkpointing: bool = False
    save_every: int = 200
    keep: int = 2
    validate_every: int = 0
    validation_tokens: int = 0
    timeout: float = 50.0
    peak_flops: float = 0.0

    def __post_init__(self) -> None:
        if self.parallel not in PARALLEL:
            raise ValueError(
                f"Unknown way to train in parallel {self.parallel!r}. Available: {', '.join(PARALLEL)}."
            )
        for name in ("context", "accumulate", "save_every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        for name in ("validate_every", "validation_tokens", "peak_flops"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(
                    f"`{name}` must be finite and not negative, got {getattr(self, name)}."
                )
        if not 0 < self.timeout < math.inf:
            raise ValueError(f"`timeout` must be finite and above zero, got {self.timeout}.")


def run_config_from_dict(data: Mapping[str, Any]) -> LMRunConfig:
    """The config that `data`, read from JSON, describes."""
    if not isinstance(data, Mapping) or not isinstance(data.get("model"), Mapping):
        raise ValueError("A run's config must be a JSON object whose `model` is one too.")
    known = [f.name for f in fields(LMRunConfig)]
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ValueError(
            f"Unknown fields of a run's config: {', '.join(unknown)}. Available: {', '.join(known)}."
        )
    if data.get("version", VERSION) > VERSION:
        raise ValueError(
            f"The run was begun by a newer statemix (version {data['version']}, this one reads {VERSION}). Upgrade statemix."
        )
    return LMRunConfig(**{**data, "model": lm_config_from_dict(data["model"])})
