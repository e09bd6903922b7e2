"""What each part of `statemix bench` measures, and at which sizes.

`statemix.commands.bench` turns the fields into options; nothing here imports torch.
"""

from dataclasses import dataclass
from typing import Literal

__all__ = ["DecodeConfig", "ErrorConfig", "MemoryConfig", "SpeedConfig"]

_Part = Literal["kernel", "scan", "layer", "threads", "length", "step", "lm", "throughput", "gates"]


@dataclass(frozen=True)
class SpeedConfig:
    """Sizes of the timed scans and layers."""

    parts: tuple[_Part, ...] = ("kernel", "scan", "layer", "threads", "length", "step", "lm")
    """Parts to measure."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device to measure on; cuda is any GPU that torch supports, including AMD's."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Dtype of gates and values; on a CPU, bfloat16 is that of autocast, in the parts layer and
    lm."""
    batch: int = 8
    """Number of sequences B."""
    length: int = 2048
    """Number of steps T of a sequence."""
    blocks: int = 128
    """Number of blocks n."""
    block_sizes: tuple[int, ...] = (1, 2, 4, 8)
    """Block sizes m for the parts kernel and scan."""
    threads: tuple[int, ...] = (1,)
    """Thread counts for scan, layer and threads; one is timed in CPU seconds, more by the clock."""
    rivals: tuple[str, ...] | None = None
    """Other implementations to time in the part scan; all that run on the device if not given."""
    rounds: int = 7
    """Number of timings, of which the median is reported; slow entrants are timed three times."""
    lm_batches: tuple[int, ...] = (1, 8)
    """Sequences per step for the part lm."""
    lm_lengths: tuple[int, ...] = (512,)
    """Lengths T for the part lm."""
    lm_models: tuple[str, ...] | None = None
    """Models to time in the part lm; all if not given."""
    lm_limit: float = 120.0
    """CPU seconds that a step of another package's model may take in the part lm if it has more
    than 512 tokens; of a slower one, only this bound is reported."""


@dataclass(frozen=True)
class MemoryConfig:
    """Sizes of the measured layers."""

    batch: int = 8
    """Number of sequences B."""
    length: int = 2048
    """Number of steps T of a sequence."""
    width: int = 512
    """Width d of the layer, which has as many states n m."""
    block_size: int = 4
    """Block size m."""
    depth: int = 1
    """Number of layers on top of each other."""


@dataclass(frozen=True)
class ErrorConfig:
    """Sizes of the compared scans, and the length of the permutation test."""

    batch: int = 4
    """Number of sequences B."""
    length: int = 512
    """Number of steps T of a sequence."""
    blocks: int = 32
    """Number of blocks n."""
    block_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Block sizes m."""
    permutation_length: int = 8192
    """Number of steps of the permutation test."""


@dataclass(frozen=True)
class DecodeConfig:
    """The timed models and positions."""

    presets: tuple[str, ...] = ("2m-bdlru-m4", "2m-hlru-m16", "2m-lstm")
    """Models by name: see `statemix lm presets`."""
    positions: tuple[int, ...] = (100, 1_000, 10_000)
    """Positions at which to time tokens."""
    tokens: int = 50
    """Number of tokens to time from each position."""
    rounds: int = 21
    """Number of timings, of which the median is reported."""
    rivals: tuple[Literal["2m", "20m"], ...] = ()
    """Also time models of other packages, of these sizes, against bdlru-m4 and lstm."""
    batches: tuple[int, ...] = (1, 8)
    """Numbers of sequences at which rivals are timed, at the first position."""
