"""`statemix bench`: what the scans and layers of this machine cost."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from statemix.commands.check import check_positive

ANYWHERE = ("hop_scan", "hop_scan compiled", "loop", "nn.LSTM")
RIVALS = {
    "cpu": (*ANYWHERE, "mamba.py", "jax scan", "jax associative_scan"),
    "cuda": (*ANYWHERE, "fla HGRN", "fla GatedDeltaNet", "mamba-ssm", "accelerated-scan"),
}
Part = Literal["kernel", "scan", "layer", "threads", "length", "step", "lm", "throughput"]


@dataclass(frozen=True)
class Speed:
    """Time kernels, scans and layers against each other, as ratios within one process.

    kernel: over a loop that only moves the same bytes. scan: as users call it, others over ours. layer: over its projections alone.
    threads: over one thread. length: time a token from T = 64 to 65,536. step: a training step of a small model, with other scans.
    lm: an optimiser step of a language model, with the paper's scan and with an LSTM. throughput: the paper's figure; not among the
    defaults.
    On a GPU, kernel also tells the bandwidth that is reached, and there is no part threads.
    """

    parts: tuple[Part, ...] = ("kernel", "scan", "layer", "threads", "length", "step", "lm")
    """What to measure."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where: cuda is any GPU that torch sees, AMD's too."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of gates and values; bfloat16 on a GPU only."""
    batch: int = 8
    """Sequences B."""
    length: int = 2048
    """Steps T of a sequence."""
    blocks: int = 128
    """Blocks n."""
    block_sizes: tuple[int, ...] = (1, 2, 4, 8)
    """Block sizes m of the parts kernel and scan."""
    threads: tuple[int, ...] = (1,)
    """Numbers of threads for scan, layer and threads; one is timed in CPU seconds, more by the clock."""
    rivals: tuple[str, ...] | None = None
    """Who else takes part in scan; all that run on the device if not given. Compiling hop_scan takes a minute or more for each size."""
    rounds: int = 7
    """Timings to take the median of; slow entrants are timed three times."""
    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        for option in ("batch", "length", "blocks", "rounds", "threads", "block_sizes"):
            check_positive(option, getattr(self, option))
        known = RIVALS[self.device]
        for rival in self.rivals or ():
            if rival not in known:
                raise SystemExit(
                    f"statemix: --rivals must be among {', '.join(map(repr, known))} on {self.device}, got {rival!r}."
                )
        if self.dtype != "float32" and self.device == "cpu":
            raise SystemExit(
                f"statemix: --dtype must be float32 on the CPU, got {self.dtype}. Add --device cuda."
            )
        from statemix.bench.speed import SpeedConfig
        from statemix.commands.views.bench import print_speed

        sizes = (self.batch, self.length, self.blocks, self.block_sizes)
        rivals = known if self.rivals is None else self.rivals
        print_speed(
            SpeedConfig(
                self.parts, *sizes, self.threads, rivals, self.rounds, self.device, self.dtype
            ),
            self.out,
        )


@dataclass(frozen=True)
class Memory:
    """Measure the peak memory of whole layers, forward and backward, with gates kept and computed again."""

    batch: int = 8
    """Sequences B."""
    length: int = 2048
    """Steps T of a sequence."""
    width: int = 512
    """Width d, and states n m."""
    block_size: int = 4
    """Block size m."""
    depth: int = 1
    """Layers on top of each other."""
    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        for option in ("batch", "length", "width", "block_size", "depth"):
            check_positive(option, getattr(self, option))
        if self.width % self.block_size:
            raise SystemExit(
                f"statemix: --width must be a multiple of --block-size {self.block_size}, got {self.width}."
            )
        from statemix.bench.memory import MemoryConfig
        from statemix.commands.views.bench import print_memory

        print_memory(
            MemoryConfig(self.batch, self.length, self.width, self.block_size, self.depth), self.out
        )


@dataclass(frozen=True)
class Error:
    """Compare float32 scans, ours and plain torch's, with float64; permute states for thousands of steps, which must be exact."""

    batch: int = 4
    """Sequences B."""
    length: int = 512
    """Steps T of a sequence."""
    blocks: int = 32
    """Blocks n."""
    block_sizes: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Block sizes m."""
    permutation_length: int = 8192
    """Steps of the permutation."""
    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        for option in ("batch", "length", "blocks", "block_sizes", "permutation_length"):
            check_positive(option, getattr(self, option))
        from statemix.bench.error import ErrorConfig
        from statemix.commands.views.bench import print_error

        print_error(
            ErrorConfig(
                self.batch, self.length, self.blocks, self.block_sizes, self.permutation_length
            ),
            self.out,
        )


@dataclass(frozen=True)
class Decode:
    """Time a language model's tokens one after the other: late ones cost what early ones do."""

    presets: tuple[str, ...] = ("2m-bdlru-m4", "2m-hlru-m16", "2m-lstm")
    """Models, by the names that `statemix lm presets` lists."""
    positions: tuple[int, ...] = (100, 1_000, 10_000)
    """Tokens to time."""
    tokens: int = 50
    """Tokens from each position on to be timed."""
    rounds: int = 21
    """Timings to take the median of."""
    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        check_positive("positions", self.positions)
        check_positive("tokens", self.tokens)
        check_positive("rounds", self.rounds)
        from statemix.bench.decode import DecodeConfig
        from statemix.commands.views.bench import print_decode

        print_decode(DecodeConfig(self.presets, self.positions, self.tokens, self.rounds), self.out)


Measurement = (
    Annotated[Speed, tyro.conf.subcommand("speed")]
    | Annotated[Memory, tyro.conf.subcommand("memory")]
    | Annotated[Error, tyro.conf.subcommand("error")]
    | Annotated[Decode, tyro.conf.subcommand("decode")]
)


@dataclass(frozen=True)
class Bench:
    """Measure speed, memory, error or decoding on this machine: tables, and JSON lines."""

    what: Annotated[tyro.conf.OmitSubcommandPrefixes[Measurement], tyro.conf.arg(name="")]

    def run(self) -> None:
        self.what.run()
