"""`statemix bench`: measure the cost and the error of scans and layers on this machine."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro

from statemix.bench.config import DecodeConfig, ErrorConfig, MemoryConfig, SpeedConfig
from statemix.commands.check import check_positive

__all__ = [
    "ANYWHERE",
    "LM_MODELS",
    "RIVALS",
    "Bench",
    "Decode",
    "Error",
    "Memory",
    "Speed",
    "Table",
]

ANYWHERE = ("hop_scan", "hop_scan compiled", "loop", "nn.LSTM")
RIVALS = {
    "cpu": (
        *ANYWHERE,
        "mamba.py",
        "jax scan",
        "jax associative_scan",
        "torch-slices",
        "torchlpc",
    ),
    "cuda": (*ANYWHERE, "fla HGRN", "fla GatedDeltaNet", "mamba-ssm", "accelerated-scan"),
}


LM_MODELS = (
    "BD-LRU, m = 4",
    "nn.LSTM",
    "transformer",
    "BD-LRU on hop_scan",
    "transformers Mamba",
    "transformers Mamba-2",
)


@dataclass(frozen=True)
class Speed(SpeedConfig):
    """Time kernels, scans and layers in one process, and print ratios of their times.

    kernel: relative to a loop that only moves the same bytes.
    scan: the public scan, and other implementations relative to it; compiling hop_scan takes a
    minute or more for each size. torchlpc computes the companion scan.
    layer: a BD-LRU, its projections alone, torch's LSTM and GRU, and torch-slices; an H-LRU, and
    one on torchlpc.
    threads: relative to one thread.
    length: time per token from T = 64 to 65,536.
    step: a training step of a small model, with our scan and others; on a CPU, also of larger ones
    in float32 and bfloat16.
    lm: an optimiser step of language models: BD-LRU, an LSTM, a transformer, Mamba and Mamba-2.
    throughput: the paper's figure; not measured by default.
    gates: scans and layers with hard gates relative to softmax; not measured by default.
    On a GPU, kernel also reports the bandwidth, and the part threads is left out.
    """

    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        sizes = ("batch", "length", "blocks", "rounds", "threads", "block_sizes")
        for option in (*sizes, "lm_batches", "lm_lengths", "lm_limit"):
            check_positive(option, getattr(self, option))
        known = RIVALS[self.device]
        for rival in self.rivals or ():
            if rival not in known:
                raise SystemExit(
                    f"statemix: --rivals must be among {', '.join(map(repr, known))} "
                    f"on {self.device}, got {rival!r}."
                )
        others = [part for part in self.parts if part not in ("layer", "lm")]
        if self.dtype != "float32" and self.device == "cpu" and others:
            raise SystemExit(
                f"statemix: on the CPU, --dtype {self.dtype} is for --parts layer lm, "
                f"got {' '.join(others)}. Leave them out, or add --device cuda."
            )
        for model in self.lm_models or ():
            if model not in LM_MODELS:
                raise SystemExit(
                    f"statemix: --lm-models must be among {', '.join(map(repr, LM_MODELS))}, "
                    f"got {model!r}."
                )
        from statemix.commands.views.bench import print_speed

        rivals = known if self.rivals is None else self.rivals
        print_speed(replace(self, rivals=rivals), self.out)


@dataclass(frozen=True)
class Memory(MemoryConfig):
    """Measure the peak memory of layers, forward and backward, with gates stored or recomputed."""

    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        for option in ("batch", "length", "width", "block_size", "depth"):
            check_positive(option, getattr(self, option))
        if self.width % self.block_size:
            raise SystemExit(
                f"statemix: --width must be a multiple of --block-size {self.block_size}, "
                f"got {self.width}."
            )
        from statemix.commands.views.bench import print_memory

        print_memory(self, self.out)


@dataclass(frozen=True)
class Error(ErrorConfig):
    """Compare the errors of float32 scans, ours and plain torch's, relative to float64.

    Also permute states for thousands of steps, which must be exact.
    """

    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        for option in ("batch", "length", "blocks", "block_sizes", "permutation_length"):
            check_positive(option, getattr(self, option))
        from statemix.commands.views.bench import print_error

        print_error(self, self.out)


@dataclass(frozen=True)
class Decode(DecodeConfig):
    """Time a language model's tokens at several positions; all should take the same time."""

    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        for option in ("positions", "tokens", "rounds", "batches"):
            check_positive(option, getattr(self, option))
        from statemix.commands.views.bench import print_decode

        print_decode(self, self.out)


@dataclass(frozen=True)
class Table:
    """Print measurements as Markdown: the value of the reference, and ratios to it."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Files of JSON lines that `--out` wrote."""

    def run(self) -> None:
        from statemix.bench.tables import markdown, read_rows

        missing = [str(file) for file in self.files if not file.is_file()]
        if missing or not self.files:
            raise SystemExit(f"statemix: no such file: {', '.join(missing) or 'none given'}.")
        print(markdown(read_rows(self.files)))


_Measurement = (
    Annotated[Speed, tyro.conf.subcommand("speed")]
    | Annotated[Memory, tyro.conf.subcommand("memory")]
    | Annotated[Error, tyro.conf.subcommand("error")]
    | Annotated[Decode, tyro.conf.subcommand("decode")]
    | Annotated[Table, tyro.conf.subcommand("table")]
)


@dataclass(frozen=True)
class Bench:
    """Measure speed, memory, error or decoding on this machine; print tables, write JSON lines."""

    what: Annotated[tyro.conf.OmitSubcommandPrefixes[_Measurement], tyro.conf.arg(name="")]

    def run(self) -> None:
        self.what.run()
