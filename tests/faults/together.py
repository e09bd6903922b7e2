"""Two of everything at once, and readers while files are written.

Two processes start the same command with the same directories. Both end, one of them perhaps with a
clear refusal, and the files are those of one command. Meanwhile a third process reads them.
"""

import json
import os
import random
import shutil
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from faults import kills
from faults.kills import COMMANDS, Command
from faults.runner import Kind, Outcome
from faults.world import fork, wait_for
from statemix.files.json_files import Damaged
from statemix.lm.saved import load_model
from statemix.runs.checkpoint import load_checkpoint
from statemix.runs.metrics import read_metrics
from statemix.sweep import Ledger

__all__ = ["KIND", "SWEEPS"]

_REFUSALS = ("Another process", "another process", "exists", "not empty")
_TESTED = [c for c in COMMANDS if c.name not in ("certify", "sweep")]
_SWEEP = next(command for command in COMMANDS if command.name == "sweep")


def _start(command: Command, folder: Path, out: Path, count: int) -> list[tuple[int, Path]]:
    """Start a command several times at once."""
    logs = [out.with_name(f"log-{i}") for i in range(count)]
    return [(kills.run(command, folder, out, log=log), log) for log in logs]


def _directory(folder: Path) -> Path:
    out = folder / f"case-{os.getpid()}" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    out.mkdir(parents=True)
    return out


def _both(rng: random.Random, folder: Path) -> Outcome:
    """The same command twice, and a reader."""
    command = rng.choice(_TESTED)
    out = _directory(folder)
    reader = fork(lambda: _read_until(out), out.with_name("reader"))
    children = _start(command, folder, out, 2)
    said = [(wait_for(child), log.read_text()) for child, log in children]
    out.with_name("done").touch()
    code = wait_for(reader)
    story = f"statemix {command.words}, twice at once"
    for ended, text in said:
        if ended and ("Traceback" in text or not any(word in text for word in _REFUSALS)):
            return Outcome("not clear", f"{story}: {text[-3000:]}")
    if all(ended for ended, _ in said):
        return Outcome("both refused", f"{story}: {said}")
    if code:
        return Outcome("reader failed", f"{story}: {out.with_name('reader').read_text()[-3000:]}")
    expected = json.loads((folder / "known.json").read_text())[command.name][0]
    found = json.loads(json.dumps(kills.results_of(command, out)))
    if wrong := kills.differences(expected, found):
        return Outcome("different", f"{story}: {wrong}")
    refused = sum(ended != 0 for ended, _ in said)
    return Outcome(f"{command.name}: one refused" if refused else f"{command.name}: both ended")


def _sweeps(rng: random.Random, folder: Path) -> Outcome:
    """Two sweeps with the same ledger, and a reader: one line for each cell."""
    out = _directory(folder)
    reader = fork(lambda: _read_until(out), out.with_name("reader"))
    children = []
    for child, log in _start(_SWEEP, folder, out, 2):
        children.append((child, log))
        time.sleep(rng.choice((0.0, 0.0, rng.uniform(0, 0.5))))
    said = [(wait_for(child), log.read_text()) for child, log in children]
    out.with_name("done").touch()
    code = wait_for(reader)
    entries, complaints = Ledger(out / "ledger.jsonl").read()
    counts = Counter(entry.id for entry in entries)
    wrong = [text for ended, text in said if ended] + complaints
    if any(count > 1 for count in counts.values()) or len(entries) != 3 or wrong:
        return Outcome("duplicate or missing lines", f"two sweeps at once: {counts}, {wrong}")
    if code:
        text = out.with_name("reader").read_text()
        return Outcome("reader failed", f"two sweeps at once: {text[-3000:]}")
    return Outcome("one line for each cell")


def _read_until(out: Path) -> None:
    """Read everything below `out` until the writers are done; what is there must be complete."""
    end = time.monotonic() + 60
    while not out.with_name("done").exists() and time.monotonic() < end:
        for directory, directories, files in os.walk(out):  # some disappear meanwhile
            for name in (*directories, *files):
                with suppress(FileNotFoundError):
                    _read(Path(directory, name))
        time.sleep(0.001)


def _read(path: Path) -> None:
    if ".part" in str(path) or ".old" in str(path):
        return
    if path.name == "checkpoint.safetensors":
        load_checkpoint(path)
    elif path.name == "metrics.jsonl":
        read_metrics(path)
    elif path.name == "ledger.jsonl":
        _, complaints = Ledger(path).read()
        if complaints:
            raise Damaged(str(complaints))
    elif path.suffix == ".json":
        json.loads(path.read_text())
    elif path.name == "final":
        load_model(path)


KIND = Kind("together", "two of everything at once", 3, _both, kills.prepare, seconds=120)
SWEEPS = Kind("sweeps", "two sweeps at once", 3, _sweeps, kills.prepare, seconds=120)
