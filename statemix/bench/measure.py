"""Timing side by side: every entrant of a contest runs once per round.

Only ratios within a contest are comparable. One thread is timed in CPU seconds of the process,
several threads in wall-clock seconds, a GPU with its own events around several calls. A time is
the median over rounds.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from statemix import __version__
from statemix.ops.dispatch import cpu, gpu
from statemix.ops.dispatch.linear import choices

__all__ = ["Contest", "Row", "TooSlow", "append", "check_writable", "hold"]

_SHORTEST = 1e-9  # seconds; a tiny reference may take less than the clock shows
_SLOW = 1.0  # entrants slower than this, in seconds, run fewer rounds
_ROUNDS_WHEN_SLOW = 3
_CALLS = 10  # of an entrant between two GPU events
_PAUSE = 0.1  # seconds before each timing, for threads of the previous entrant to finish


@dataclass(frozen=True)
class Contest:
    """Calls to time against each other; ratios are relative to the entrant `reference`."""

    part: str
    setting: str
    reference: str
    entrants: dict[str, Callable[[], object]]
    threads: int = 1
    device: str = "cpu"
    moved: int = 0  # bytes that every entrant reads and writes, if known


class TooSlow(Exception):
    """Raised by the first call of an entrant that would take longer than `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"a call takes more than {seconds:g} s")
        self.seconds = seconds


@dataclass(frozen=True)
class Row:
    """One entrant's result: a number, and its ratio to the reference's.

    With no rounds, both are lower bounds.
    """

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
def _threads_of_torch(count: int) -> Iterator[None]:
    """Let torch use `count` threads inside the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(entrant: Callable[[], object], contest: Contest) -> float:
    """The duration of one call."""
    if contest.device == "cuda":
        return _gpu_seconds(entrant)
    now = time.process_time if contest.threads == 1 else time.perf_counter
    start = now()
    entrant()
    return now() - start


def _gpu_seconds(entrant: Callable[[], object]) -> float:
    """The duration of one call on a GPU, over calls queued back to back."""
    start = torch.cuda.Event(enable_timing=True)
    stop = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(_CALLS):
        entrant()
    stop.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(stop) / _CALLS


def hold(contest: Contest, rounds: int) -> list[Row]:
    """Run the contest: one warm-up round, then `rounds` timed ones."""
    with _threads_of_torch(contest.threads):
        bounds: dict[str, float] = {}
        entrants = {
            name: entrant
            for name, entrant in contest.entrants.items()
            if _runs(name, contest, bounds)
        }
        times: dict[str, list[float]] = {name: [] for name in entrants}
        for round_ in range(rounds):
            for name, entrant in entrants.items():
                if round_ >= _ROUNDS_WHEN_SLOW and statistics.median(times[name]) > _SLOW:
                    continue
                time.sleep(_PAUSE)
                if round_ and statistics.median(times[name]) < _SLOW:
                    entrant()  # untimed, as in a training loop: the pause let threads sleep
                times[name].append(_seconds(entrant, contest))
    reference = max(statistics.median(times[contest.reference]), _SHORTEST)
    found = {name: (statistics.median(taken), len(taken)) for name, taken in times.items()}
    found |= {name: (bound, 0) for name, bound in bounds.items()}
    return [
        Row(
            part=contest.part,
            setting=contest.setting,
            entrant=name,
            threads=contest.threads,
            value=1e3 * found[name][0],
            unit="ms",
            reference=contest.reference,
            ratio=found[name][0] / reference,
            rounds=found[name][1],
        )
        for name in contest.entrants
        if name in found
    ]


def _runs(name: str, contest: Contest, bounds: dict[str, float]) -> bool:
    """Call an entrant for the first time. If it fails, leave it out and say so on stderr.

    The time of one that is too slow is bounded in `bounds`. A failure of the reference is an error.
    """
    try:
        contest.entrants[name]()
    except TooSlow as slow:
        bounds[name] = slow.seconds
        return False
    except Exception as error:
        if name == contest.reference:
            raise
        reason = (str(error).strip() or "no message").splitlines()[0]
        message = f"left out, {name} ({contest.setting}): {type(error).__name__}: {reason}"
        print(message, file=sys.stderr)
        return False
    return True


def check_writable(out: Path | None) -> None:
    """Fail before measuring rather than after it."""
    if out is None:
        return
    try:
        out.open("a").close()
    except OSError as error:
        raise SystemExit(f"statemix: cannot write to --out {out}: {error.strerror}.") from error


def _machine() -> dict[str, str]:
    """The software and hardware that the numbers were measured on."""
    facts = {
        "statemix": __version__,
        "torch": torch.__version__,
        "processor": _processor(),
        "library": cpu.describe(),
        "products": ", ".join(sorted({choice.library for choice in choices()})),
    }
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "gpu_kernels": gpu.describe()}
    return facts


def _processor() -> str:
    """The name of the CPU."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def append(rows: list[Row], out: Path | None) -> None:
    """Append each row to `out` as a JSON line."""
    if out is not None:
        with out.open("a") as lines:
            lines.writelines(json.dumps(asdict(row) | _machine()) + "\n" for row in rows)
