"""The `statemix` command.  Arguments are parsed before torch is imported, so that `--help` answers at once."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from statemix import __version__


@dataclass(frozen=True)
class Info:
    """Show versions, threads, and which kernel each scan uses on this machine and why."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object instead of tables."""

    def run(self) -> None:
        from statemix.info import print_info

        print_info(as_json=self.json)


@dataclass(frozen=True)
class Bench:
    """Time the scans against each other on this machine, forward and backward, as ratios within one process."""

    batch: int = 8
    """Sequences."""
    length: int = 256
    """Steps a sequence."""
    blocks: int = 64
    """Blocks n."""
    block_sizes: tuple[int, ...] = (1, 2, 4, 8)
    """Block sizes m to time."""
    threads: int = 1
    """Threads torch may use."""
    repeats: int = 5
    """Timings to take the median of."""
    out: Path | None = None
    """Append the measurements to this file as JSON lines."""

    def run(self) -> None:
        from statemix.bench.speed import SpeedConfig, print_speed

        for name in ("batch", "length", "blocks", "threads", "repeats"):
            check_positive(name, getattr(self, name))
        for size in self.block_sizes or (0,):
            check_positive("block-sizes", size)
        sizes = SpeedConfig(self.batch, self.length, self.blocks, self.block_sizes, self.threads, self.repeats)
        print_speed(sizes, self.out)


Command = Annotated[Info, tyro.conf.subcommand("info")] | Annotated[Bench, tyro.conf.subcommand("bench")]


def check_positive(option: str, value: int) -> None:
    if value < 1:
        raise SystemExit(f"statemix: --{option} must be at least 1, got {value}.")


def main(arguments: list[str] | None = None) -> None:
    """Run one command; `arguments` are those of the shell unless given."""
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(f"statemix {__version__}")
        return
    command = tyro.cli(
        Command,
        prog="statemix",
        description="Linear recurrent networks whose states mix: scans, layers, and what they cost on this machine.",
        args=arguments,
    )
    command.run()


if __name__ == "__main__":
    main()
