"""Throughput of sequential, parallel, compiled and fused scans (the paper's figure).

    python experiments/fig_throughput.py
    statemix report

The figure shows throughput by block size, by length, and for layers with equal parameter counts.
The script is `statemix bench speed --parts throughput` with the options of the report: ratios
within one process, on one thread.  Compiling the paper's scan takes a minute or more for each size;
`--rivals loop hop_scan` skips it.  Keep the machine otherwise idle.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.bench import Speed


@dataclass(frozen=True)
class Options:
    """Measure throughput; the report shows the last measurement of each setting."""

    rivals: tuple[str, ...] = ("loop", "hop_scan", "hop_scan compiled")
    """Implementations to compare with the fused kernel."""
    rounds: int = 3
    """Number of timings; the median is reported."""
    out: Path = Path("results/bench/throughput.jsonl")
    """Append the measurements to this file, as JSON lines."""


def main(options: Options) -> None:
    Speed(
        parts=("throughput",), rivals=options.rivals, rounds=options.rounds, out=options.out
    ).run()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
