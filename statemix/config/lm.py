"""Language-model runs as data: what is trained on what, and how it is computed.

`LMRunConfig` determines the numbers, and its id is a hash of it. `Execution` determines how they
are computed, and may change between calls: a run started on one process can resume on eight ranks.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Literal

from statemix.config.build import build
from statemix.config.fields import (
    NON_NEGATIVE,
    SHARPENING,
    Range,
    check_fields,
    check_known,
    explain_unknown,
)
from statemix.config.model import LMConfig, Size, lm_config_from_dict
from statemix.config.sections import (
    Fraction,
    NonNegative,
    Optimisation,
    Optimiser,
    Rate,
    Schedule,
    Warmup,
)

__all__ = ["VERSION", "Execution", "LMRunConfig", "run_config_from_dict"]

VERSION = 1  # raised when a field changes its meaning
Count = Annotated[int, NON_NEGATIVE]

# The first runs did not have these fields: an id hashes them only where they differ from this.
_LATER_FIELDS = {
    "optimiser": "adamw",
    "matrix_lr": 0.02,
    "cooldown": 0.0,
    "order": "shuffled",
    "sharpen": 1.0,
    "answers": 1.0,
}


Seconds = Annotated[float, Range("above zero and at most 1e6", lambda x: 0 < x <= 1e6)]


@explain_unknown
@dataclass(frozen=True)
class LMRunConfig(Schedule, Optimisation):
    """One language-model run; `statemix lm train` has the same fields and defaults."""

    model: LMConfig
    """The model to train; its vocabulary is the data's."""
    data: str
    """A digest of the prepared text."""
    length: Size = 256
    """Tokens per sequence."""
    batch: Size = 8
    """Sequences per step, over all ranks."""
    steps: Size = 1000
    """Number of optimiser steps."""
    optimiser: Optimiser = field(default="muon", kw_only=True)
    lr: Rate = field(default=4e-3, kw_only=True)
    beta2: Fraction = field(default=0.95, kw_only=True)
    weight_decay: NonNegative = field(default=0.1, kw_only=True)
    warmup: Warmup = field(default=0.05, kw_only=True)
    reset: bool = field(default=True, kw_only=True)
    """Start every document from the initial state."""
    order: Literal["shuffled", "text"] = field(default="shuffled", kw_only=True)
    """shuffled: read the sequences in a random order, another one in each epoch. text: read them in
    the order of the text, which may be a curriculum."""
    answers: Rate = field(default=1.0, kw_only=True)
    """Weight of the last word of a document, before its full stop, in the training loss: stories
    end with their answer, one token in forty."""
    sharpen: Annotated[float, SHARPENING] = field(default=1.0, kw_only=True)
    """Multiply the raw gates of BD-LRU and H-LRU by this factor in every step of the cool-down."""
    bf16: bool = field(default=False, kw_only=True)
    """Compute in bfloat16 autocast; weights, states and sums stay in float32."""
    seed: Count = field(default=0, kw_only=True)
    """Seed of the initialisation and the order of batches."""
    version: int = field(default=VERSION, kw_only=True)
    """Version of the config format."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.sharpen > 1.0 and not self.cooldown:
            raise ValueError(
                f"`sharpen` = {self.sharpen} takes effect in the cool-down, but `cooldown` is 0. "
                "Set `cooldown` to 0.3, for example."
            )

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits: a hash of the config."""
        data = json.loads(self.to_json())
        said = {
            name: value
            for name, value in data.items()
            if name not in _LATER_FIELDS or value != _LATER_FIELDS[name]
        }
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def tokens(self) -> int:
        """Tokens predicted per step."""
        return self.batch * self.length

    def to_json(self) -> str:
        """The config as one line of JSON with sorted keys."""
        return json.dumps({**asdict(self), "model": self.model.to_dict()}, sort_keys=True)


@dataclass(frozen=True)
class Execution:
    """How a run is computed, and what is written while it trains."""

    parallel: Literal["ddp", "fsdp"] = "ddp"
    """ddp: every rank holds the model. fsdp: every rank holds a shard of it (FSDP2)."""
    context: Size = 1
    """Ranks that share each sequence (context parallelism). It must divide the number of ranks."""
    accumulate: Size = 1
    """Gradient accumulation: compute a rank's batch in this many parts."""
    compile: bool = False
    """Compile each block with torch.compile."""
    checkpointing: bool = False
    """Recompute blocks in the backward pass: less memory, about a third more time."""
    save_every: Size = 200
    """Steps between checkpoints."""
    keep: Size = 2
    """Number of checkpoints to keep."""
    validate_every: Count = 0
    """Steps between validations (0: only after the last step)."""
    validation_tokens: Count = 0
    """Number of held-out tokens to validate on (0: all)."""
    timeout: Seconds = 50.0
    """Seconds after which a rank stops waiting for another."""
    peak_flops: NonNegative = 0.0
    """Peak floating-point operations per second of a rank, for the utilisation (0: time a matrix
    product)."""

    def __post_init__(self) -> None:
        check_fields(self)


def run_config_from_dict(data: Mapping[str, Any]) -> LMRunConfig:
    """The config that `data`, read from JSON, describes."""
    check_known(LMRunConfig, data, "a language-model run")
    version = data.get("version", VERSION)
    if isinstance(version, int) and version > VERSION:
        raise ValueError(
            f"The run was started by a newer statemix (version {version}, this one reads "
            f"{VERSION}). Upgrade statemix."
        )
    lm_config_from_dict(data.get("model", {}))
    return build(LMRunConfig, {**_LATER_FIELDS, **data})
