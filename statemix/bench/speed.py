"""Seconds and ratios of the scans, forward and backward, all measured in one process.

A shared machine is noisy, so a time is the median of repeats and only ratios within a run are worth comparing.
"""

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from statemix.ops import block_scan, hop_scan

Scan = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
SCANS: dict[str, Scan] = {"block_scan": block_scan, "hop_scan": hop_scan}


@dataclass(frozen=True)
class SpeedConfig:
    """The sizes to time."""

    batch: int
    length: int
    blocks: int
    block_sizes: tuple[int, ...]
    threads: int
    repeats: int


@dataclass(frozen=True)
class Timing:
    """The median time of one scan at one size."""

    scan: str
    batch: int
    length: int
    blocks: int
    block_size: int
    threads: int
    forward_ms: float
    forward_backward_ms: float


def measure(config: SpeedConfig) -> list[Timing]:
    """Time every scan at every block size."""
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads)
    try:
        cases = [(m, scan) for m in config.block_sizes for scan in SCANS]
        return [_time_one(scan, m, config) for m, scan in track(cases, "timing", transient=True, console=Console(stderr=True))]
    finally:
        torch.set_num_threads(before)


def _time_one(scan: str, m: int, config: SpeedConfig) -> Timing:
    torch.manual_seed(0)
    shape = (config.batch, config.length, config.blocks, m)
    A = torch.softmax(torch.randn(*shape, m + 1), -1)[..., :m].contiguous().requires_grad_()
    b = torch.randn(shape, requires_grad=True)

    def forward() -> Tensor:
        return SCANS[scan](A, b)[0]

    def forward_backward() -> None:
        torch.autograd.grad(forward().sum(), (A, b))

    with torch.no_grad():
        forward_ms = median_ms(forward, config.repeats)
    both_ms = median_ms(forward_backward, config.repeats)
    return Timing(scan, *shape, config.threads, forward_ms, both_ms)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """The median time of `call` in milliseconds, after one call to warm up."""
    call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def check_writable(out: Path) -> None:
    """Fail before the measuring, not after it."""
    try:
        out.open("a").close()
    except OSError as error:
        raise SystemExit(f"statemix: cannot write to --out {out}: {error.strerror}.") from error


def print_speed(config: SpeedConfig, out: Path | None) -> None:
    """Measure, print a table, and append JSON lines to `out`."""
    if out is not None:
        check_writable(out)
    timings = measure(config)
    table = Table("m", "scan", "forward ms", "forward + backward ms", "over block_scan")
    for timing in timings:
        base = next(t for t in timings if t.scan == "block_scan" and t.block_size == timing.block_size)
        ratio = timing.forward_backward_ms / base.forward_backward_ms
        table.add_row(str(timing.block_size), timing.scan, f"{timing.forward_ms:.2f}", f"{timing.forward_backward_ms:.2f}", f"{ratio:.2f}×")
    Console().print(table)
    if out is not None:
        with out.open("a") as lines:
            lines.writelines(json.dumps(asdict(timing)) + "\n" for timing in timings)
