"""Stress trials of sweeps that are killed or share a ledger; their runs sleep instead of training.

    python tests/sweep_trials.py kill 50
    python tests/sweep_trials.py share 50

A trial forks its sweeps, which fork their workers, so that nothing is imported again. Each run
holds a lock of the test, which detects two processes in the same cell. Every trial must end with
one ledger line for each cell, and its last sweep must exit with code 0. The program prints the
trials that failed.
"""

import fcntl
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from statemix.sweep import Ledger, engines, sweep, worker
from statemix.train import RunConfig

CELLS = [replace(RunConfig("s2"), seed=seed) for seed in range(6)]
SECONDS = 0.03
KILLED = ("parent", "worker", "both")


def note(folder, word, id_):
    with (folder / "log").open("a") as file:
        file.write(f"{word} {id_} {os.getpid()}\n")


def noted(folder, word):
    """Read (id, process) from all log lines that start with `word`."""
    lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
    return [tuple(line.split()[1:]) for line in lines if line.startswith(word)]


def sleep_instead(config, directory, data, report):
    """Sleep in place of training, and return the result at once if there is one."""
    folder = directory.parents[1]
    signal.alarm(30)  # no worker outlives a trial that fails
    with (folder / f"witness-{config.id}").open("a") as witness:
        try:
            fcntl.flock(witness, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            note(folder, "overlap", config.id)
        note(folder, "start", config.id)
        if not (directory / "result").exists():
            time.sleep(random.uniform(0.0, float(os.environ["LONGEST_RUN"])))
            note(folder, "trained", config.id)
            (directory / "result").touch()
    accuracy = {"token": 1.0}
    return {"id": config.id, "by": os.getpid(), "validation": accuracy, "test": accuracy}


def start(folder, runs, seconds=SECONDS):
    """Start a sweep in a new process with the exit code of the command, for at most 20 seconds."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.environ["LONGEST_RUN"] = str(seconds)
        signal.alarm(20)
        random.seed()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        ledger = Ledger(folder / "ledger.jsonl")
        code = int(sweep(CELLS, ledger, folder / runs, engine="local", workers=2).missing > 0)
    finally:
        os._exit(code)


def exit_code(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_trial(folder, number):
    """Kill the parent, its workers, or all of them in the middle of a run; restart at once.

    If the parent is killed, its workers would continue for a minute in every other trial.
    """
    killed = KILLED[number % 3]
    first = start(folder, "runs", 60 if number % 2 and killed != "worker" else SECONDS)
    while not noted(folder, "start"):
        time.sleep(0.002)
    time.sleep(random.uniform(0.0, 0.04))
    workers = {int(process) for _, process in noted(folder, "start")}
    victims = {"parent": {first}, "worker": workers, "both": {first, *workers}}
    for victim in victims[killed]:
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
    second = start(folder, "runs")
    exit_code(first)
    return [exit_code(second)]


def share_trial(folder, number):
    """Start two sweeps at once with the same ledger, in the same or in different directories."""
    sweeps = [start(folder, "runs"), start(folder, "others" if number % 2 else "runs")]
    return [exit_code(child) for child in sweeps]


def look(folder, codes, *, killed):
    """List what is wrong after a trial."""
    entries, complaints = Ledger(folder / "ledger.jsonl").read()
    lines = Counter(entry.id for entry in entries if entry.status == "done")
    trained = Counter(id_ for id_, _ in noted(folder, "trained"))
    found = {
        "exit codes": codes if any(codes) else [],
        "damaged lines": complaints,
        "cells without a line": [c.id for c in CELLS if c.id not in lines],
        "cells with several lines": [id_ for id_, count in lines.items() if count > 1],
        "processes in one cell": noted(folder, "overlap"),
    }
    if not killed:
        found["cells run twice"] = [id_ for id_, count in trained.items() if count > 1]
        found["lines of failures"] = len(entries) - len(lines)
        found["claims left"] = len(list(folder.glob("*.claims/*")))
    return {what: value for what, value in found.items() if value}


def main(kind, count):
    context = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _: context
    worker.train_config = sleep_instead
    engines.torch.set_num_threads = lambda _: None
    trial = {"kill": kill_trial, "share": share_trial}[kind]
    wrong = []
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            codes = trial(Path(folder), number)
            found = look(Path(folder), codes, killed=kind == "kill")
        if found:
            wrong.append({"trial": number} | found)
    print(json.dumps(wrong))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
