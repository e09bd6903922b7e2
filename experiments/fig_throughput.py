"""What a step costs, sequential, parallel, compiled and fused: by block size, by length, at equal parameters (the paper's figure).

    python experiments/fig_throughput.py
    statemix report

The same as `statemix bench speed --parts throughput`, for the report: ratios within one process, on one thread.  Compiling the paper's
scan takes a minute or more for each size; `--rivals loop hop_scan` goes without.  Keep the machine quiet meanwhile.
"""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.bench import Speed


@dataclass(frozen=True)
class Options:
    """Measure throughput and append it to results/bench/throughput.jsonl, whose last line for each setting the report shows."""

    rivals: tuple[str, ...] = ("loop", "hop_scan", "hop_scan compiled")
    """Who takes part beside the fused kernel."""
    rounds: int = 3
    """Timings to take the median of."""
    out: Path = Path("results/bench/throughput.jsonl")
    """Where measurements are appended, as JSON lines."""


def main(options: Options) -> None:
    Speed(
        parts=("throughput",), rivals=options.rivals, rounds=options.rounds, out=options.out
    ).run()


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
