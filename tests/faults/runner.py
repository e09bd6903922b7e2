"""Run the cases of a kind in forked processes that are watched.

A process runs one case after another, so that a case need not import anything. If it dies or
exceeds the time of a case, that case counts as a crash or a hang, and a new process continues.
"""

import json
import os
import random
import resource
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from pathlib import Path

__all__ = ["Kind", "Outcome", "Tally", "describe", "note", "run_kind"]

_TICK = 0.5  # seconds between two looks at the processes
MEMORY = 12 << 30  # bytes of address space: a case that asks for more fails instead of swapping


@dataclass(frozen=True)
class Outcome:
    """How a case ended: a label to count, and what is wrong (empty: nothing).

    A case of many calls has a `count`, and the number of calls by label in `labels`.
    """

    label: str
    wrong: str = ""
    count: int = 1
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Args:
        cases: number of cases at FAULTS=1.
        run: one case, from its random numbers and the folder that `prepare` filled.
        prepare: called once, in a separate process.
        seconds: the longest time of a case.
        small: numbers of the cases that `make test` runs.
    """

    name: str
    title: str
    cases: int
    run: Callable[[random.Random, Path], Outcome]
    prepare: Callable[[Path], None] = lambda folder: None
    seconds: float = 20.0
    small: Sequence[int] = ()


@dataclass
class Tally:
    """Outcomes of a kind, and the failures with what reproduces them."""

    cases: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, kind: Kind, number: int, seed: int, outcome: Outcome) -> None:
        """Count an outcome."""
        self.cases += outcome.count
        self.labels.update(outcome.labels or {outcome.label: outcome.count})
        if outcome.wrong:
            again = f"PYTHONPATH=tests python -m faults --kind {kind.name} --case {number}"
            self.failures.append(f"{outcome.wrong}\n    {again} --seed {seed}")


def describe(kind: Kind, tally: Tally) -> str:
    """One line of counts."""
    labels = ", ".join(f"{label} {count:,}" for label, count in sorted(tally.labels.items()))
    return (
        f"{kind.title}: {tally.cases:,} cases, {len(tally.failures)} failed, "
        f"{tally.seconds:.0f} s ({labels})"
    )


def note(folder: Path, what: str) -> None:
    """Write down what a case is about to do, for the report of a crash or a hang."""
    (folder / f"note-{os.getpid()}").write_text(what, errors="backslashreplace")


def run_kind(
    kind: Kind, numbers: Sequence[int], *, seed: int, jobs: int = 1, quiet: bool = True
) -> Tally:
    """Run the cases `numbers` in `jobs` processes."""
    tally = Tally()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix=f"faults-{kind.name}-") as folder:
        _prepare(kind, Path(folder), quiet=quiet)
        for number, outcome in _outcomes(kind, Path(folder), numbers, seed, jobs, quiet=quiet):
            tally.add(kind, number, seed, outcome)
    tally.seconds = time.perf_counter() - started
    return tally


def _prepare(kind: Kind, folder: Path, *, quiet: bool) -> None:
    """Fill the folder of a kind in a forked process."""
    child = os.fork()
    if not child:
        _enter(quiet=quiet)
        code = 1
        try:
            kind.prepare(folder)
            code = 0
        except BaseException:
            (folder / "error").write_text(traceback.format_exc())
        finally:
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        path = folder / "error"
        why = path.read_text() if path.exists() else "its process died"
        raise RuntimeError(f"The files of the kind {kind.name!r} could not be made: {why}")


def _enter(*, quiet: bool) -> None:
    """Settings of a forked process: its own group, bounded memory, no output."""
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if quiet:
        nothing = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nothing, stream)


class _Worker:
    """A process that runs cases and reports them through a pipe."""

    def __init__(self, kind: Kind, folder: Path, numbers: list[int], seed: int, quiet: bool):
        self.numbers = numbers
        self.left = kind.seconds
        self.computed = 0.0
        reader, writer = os.pipe()
        self.child = os.fork()
        if not self.child:
            os.close(reader)
            _enter(quiet=quiet)
            _serve(kind, folder, numbers, seed, writer)
        os.close(writer)
        self.reader = reader
        self.text = b""

    def fileno(self) -> int:
        return self.reader

    def lines(self) -> list[bytes] | None:
        """The lines that the process has written since, or None if it has ended."""
        data = os.read(self.reader, 1 << 20)
        if not data:
            return None
        *lines, self.text = (self.text + data).split(b"\n")
        return lines

    def spent(self, elapsed: float) -> float:
        """The time since the last look that counts: of computing, or of waiting.

        Processes that are stopped, or that wait for a processor, spend none; those that sleep and
        poll spend all of it.
        """
        seconds, states = _tree(self.child)
        computed = max(0.0, seconds - self.computed)
        self.computed = max(seconds, self.computed)
        return elapsed if states <= {"S", "D", "Z"} else min(computed, elapsed)

    def end(self) -> int:
        """Kill what is left of the process and of its children; return its exit code."""
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(self.child, signal.SIGKILL)
        os.close(self.reader)
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


def _tree(root: int) -> tuple[float, set[str]]:
    """The seconds that a process and its descendants have computed, and their states."""
    children: dict[int, list[int]] = {}
    found: dict[int, list[str]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # of a process that has ended
            found[int(path.parent.name)] = words = path.read_text().rpartition(")")[2].split()
            children.setdefault(int(words[1]), []).append(int(path.parent.name))
    ticks, states, left = 0, set(), [root]
    for process in left:
        if process in found:
            states.add(found[process][0])
            ticks += sum(map(int, found[process][11:15]))
            left += children.get(process, [])
    return ticks / os.sysconf("SC_CLK_TCK"), states


def _serve(kind: Kind, folder: Path, numbers: list[int], seed: int, writer: int) -> None:
    """Run the cases, one line of JSON each, and exit."""
    code = 1
    try:
        for number in numbers:
            rng = random.Random(f"{kind.name} {seed} {number}")
            try:
                outcome = kind.run(rng, folder)
            except Exception:
                outcome = Outcome("error in the suite", traceback.format_exc())
            os.write(writer, json.dumps(asdict(outcome)).encode() + b"\n")
        code = 0
    finally:
        os._exit(code)


def _outcomes(
    kind: Kind, folder: Path, numbers: Sequence[int], seed: int, jobs: int, *, quiet: bool
) -> Iterator[tuple[int, Outcome]]:
    """Yield (number, outcome) of every case."""
    shares = [list(numbers[job::jobs]) for job in range(jobs)]
    workers = [_Worker(kind, folder, share, seed, quiet) for share in shares if share]
    looked = time.monotonic()
    while workers:
        ready = wait(workers, timeout=_TICK)
        elapsed = min(time.monotonic() - looked, 2 * _TICK)  # longer if this process was stopped
        looked = time.monotonic()
        for worker in list(workers):
            worker.left -= worker.spent(elapsed)
            late = worker.left < 0
            lines = worker.lines() if worker in ready else []
            for line in lines or ():
                yield worker.numbers.pop(0), Outcome(**json.loads(line))
                worker.left = kind.seconds
            if lines or (lines is not None and not late):
                continue
            workers.remove(worker)
            code = worker.end()
            if worker.numbers:
                yield worker.numbers.pop(0), _death(kind, folder, worker.child, code, late=late)
            if worker.numbers:
                workers.append(_Worker(kind, folder, worker.numbers, seed, quiet))


def _death(kind: Kind, folder: Path, child: int, code: int, *, late: bool) -> Outcome:
    """The outcome of a case that did not return."""
    path = folder / f"note-{child}"
    what = path.read_text() if path.exists() else kind.name
    if late:
        return Outcome("hang", f"{what}: took more than {kind.seconds:g} s")
    name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Outcome("crash", f"{what}: ended the process, {name}")
