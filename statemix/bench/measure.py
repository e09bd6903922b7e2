"""Timing side by side: every entrant of a contest runs once a round, and only ratios within a contest are worth comparing.

One thread is timed in CPU seconds of the process, more threads in seconds of the clock, a GPU by its own events, several calls between two
of them.  A time is the median over rounds.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from statemix import __version__
from statemix.ops.dispatch import gpu
from statemix.ops.dispatch.registry import cpu_library

SLOW = 1.0  # seconds from which an entrant takes part in fewer rounds
ROUNDS_WHEN_SLOW = 3
CALLS = 10  # of an entrant between two events of a GPU
PAUSE = 0.1  # seconds before each timing, in which another entrant's threads end what they are still about
ERRORS = Console(stderr=True)


@dataclass(frozen=True)
class Contest:
    """Calls to be timed against each other; `reference` is the entrant that ratios are taken over."""

    part: str
    setting: str
    reference: str
    entrants: dict[str, Callable[[], object]]
    threads: int = 1
    device: str = "cpu"
    moved: int = 0  # bytes that every entrant reads and writes, if that is known


@dataclass(frozen=True)
class Row:
    """One entrant's result: a number, and its ratio over the reference's."""

    part: str
    setting: str
    entrant: str
    threads: int
    value: float
    unit: str
    reference: str
    ratio: float
    rounds: int


@contextmanager
def threads_of_torch(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def seconds(entrant: Callable[[], object], contest: Contest) -> float:
    """How long one call takes."""
    if contest.device == "cuda":
        return gpu_seconds(entrant)
    now = time.process_time if contest.threads == 1 else time.perf_counter
    start = now()
    entrant()
    return now() - start


def gpu_seconds(entrant: Callable[[], object]) -> float:
    """The same on a GPU, over calls that follow each other without waiting."""
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(CALLS):
        entrant()
    stop.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(stop) / CALLS


def hold(contest: Contest, rounds: int) -> list[Row]:
    """Run the contest: one round to warm up, then `rounds` of them."""
    with threads_of_torch(contest.threads):
        entrants = {
            name: entrant for name, entrant in contest.entrants.items() if runs(name, contest)
        }
        times: dict[str, list[float]] = {name: [] for name in entrants}
        for round_ in range(rounds):
            for name, entrant in entrants.items():
                if round_ >= ROUNDS_WHEN_SLOW and statistics.median(times[name]) > SLOW:
                    continue
                time.sleep(PAUSE)
                if round_ and statistics.median(times[name]) < SLOW:
                    entrant()  # as in a loop of training steps: not woken from a pause
                times[name].append(seconds(entrant, contest))
    reference = statistics.median(times[contest.reference])
    return [
        Row(
            contest.part,
            contest.setting,
            name,
            contest.threads,
            1e3 * median,
            "ms",
            contest.reference,
            median / reference,
            len(times[name]),
        )
        for name, median in ((name, statistics.median(times[name])) for name in entrants)
    ]


def runs(name: str, contest: Contest) -> bool:
    """Call an entrant for the first time; one that fails is left out with a word, and only the reference must not."""
    try:
        contest.entrants[name]()
    except Exception as error:
        if name == contest.reference:
            raise
        reason = (str(error).strip() or "no message").splitlines()[0]
        ERRORS.print(
            f"left out, {name} ({contest.setting}): {type(error).__name__}: {reason}", markup=False
        )
        return False
    return True


def show_progress() -> Progress:
    """A line that says what is being measured, on stderr."""
    return Progress(
        TextColumn("measuring {task.description}"),
        TimeElapsedColumn(),
        transient=True,
        console=ERRORS,
    )


def check_writable(out: Path | None) -> None:
    """Fail before the measuring, not after it."""
    if out is None:
        return
    try:
        out.open("a").close()
    except OSError as error:
        raise SystemExit(f"statemix: cannot write to --out {out}: {error.strerror}.") from error


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    facts = {
        "statemix": __version__,
        "torch": torch.__version__,
        "processor": processor(),
        "library": cpu_library(),
    }
    return facts | (
        {"gpu": torch.cuda.get_device_name(), "gpu_kernels": gpu.describe()}
        if torch.cuda.is_available()
        else {}
    )


def processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.split(":", 1)[1].strip()
            for line in info.read_text().splitlines()
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def report(title: str, rows: list[Row], out: Path | None) -> None:
    """Print a table, and append its rows to `out`."""
    show(title, rows)
    append(rows, out)


def show(title: str, rows: list[Row]) -> None:
    table = Table(
        "setting",
        "entrant",
        "threads",
        rows[0].unit if rows else "",
        "ratio",
        "over",
        title=title,
        title_justify="left",
    )
    for i, row in enumerate(rows):
        first = i == 0 or (rows[i - 1].setting, rows[i - 1].threads) != (row.setting, row.threads)
        table.add_row(
            row.setting if first else "",
            row.entrant,
            str(row.threads),
            f"{row.value:.4g}",
            f"{row.ratio:.3g}",
            row.reference,
        )
    Console().print(table)


def append(rows: list[Row], out: Path | None) -> None:
    """Each row as a line of JSON."""
    if out is not None:
        with out.open("a") as lines:
            lines.writelines(json.dumps(asdict(row) | machine()) + "\n" for row in rows)
