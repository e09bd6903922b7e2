"""Kills at random instants of every command that writes, and restarts at once.

A command runs in a forked process. It is killed after a random number of operations on files, or
after a random time; a sweep also loses its workers. Then the same command is run again, and must
end with the same bits as a run that was not killed, and with nothing left behind.
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from faults import world
from faults.runner import Kind, Outcome
from faults.world import bits, fork, wait_for
from statemix import cli

__all__ = [
    "COMMANDS",
    "KIND",
    "SMALL",
    "Command",
    "differences",
    "forking_sweeps",
    "results_of",
    "run",
]

_EVENTS = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"}


@dataclass(frozen=True)
class Command:
    """A command that writes to `{out}`, reads from `{folder}`, and how many cases it gets."""

    name: str
    words: str
    weight: int


COMMANDS = (
    Command("train", f"{world.TRAIN} --runs {{out}}", 5),
    Command(
        "sweep",
        "sweep {folder}/experiment.py --ledger {out}/ledger.jsonl --runs {out}/runs --workers 2",
        4,
    ),
    Command("lm prepare", f"lm prepare {{folder}}/texts --out {{out}}/data {world.PREPARE}", 3),
    Command("lm train", f"lm train {{folder}}/data --out {{out}}/lm {world.LM_TRAIN}", 4),
    Command("lm export", "lm export {folder}/lm/final {out}/export", 2),
    Command(
        "report",
        "report --ledger {folder}/ledger.jsonl --experiments {folder}/experiments "
        "--bench {folder}/bench --out {out}/report",
        1,
    ),
    Command("certify", "certify {out}/run", 1),
)


def run(
    command: Command,
    folder: Path,
    out: Path,
    limit: int = 0,
    *,
    log: Path | None = None,
    user: int | None = None,
) -> int:
    """Start a command in a forked process.

    Args:
        limit: kill it at that operation on files (0: never).
        user: run as this user.
    """
    words = command.words.format(folder=folder, out=out).split()

    def main() -> None:
        forking_sweeps()
        if user is not None:
            os.setgid(user)
            os.setuid(user)
        counted = _count_operations(str(out), limit)
        with world.saving_always():
            try:
                cli.main(words)
            finally:
                if not limit and user is None:
                    (folder / f"operations-{os.getpid()}").write_text(str(counted[0]))

    return fork(main, log or out.with_name(f"{out.name}.log"))


def forking_sweeps() -> None:
    """Sweeps fork their workers, which then need not import anything."""
    import multiprocessing

    from statemix.sweep import engines

    context = multiprocessing.get_context("fork")
    engines.multiprocessing.get_context = lambda method=None: context  # type: ignore[assignment]


def _count_operations(place: str, limit: int) -> list[int]:
    """Count this process's operations on files below `place`; die at number `limit`."""
    counted = [0]
    owner = os.getpid()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not str(arguments[0]).startswith(place):
            return
        if os.getpid() != owner or (event == "open" and str(arguments[1]) in ("r", "rb")):
            return
        counted[0] += 1
        if counted[0] == limit:
            os.kill(owner, signal.SIGKILL)

    sys.addaudithook(hook)
    return counted


def results_of(command: Command, out: Path) -> dict[str, Any]:
    """What a command must leave: all bits, and of a sweep one line for each cell that is done."""
    found: dict[str, Any] = dict(bits(out))
    if command.name == "sweep":
        found.pop("ledger.jsonl")
        lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
        done = [line for line in lines if line["status"] == "done"]
        found["ledger"] = sorted(
            (line["id"], str(line["result"]["test"]), line["result"]["steps"]) for line in done
        )
    return found


# What a run that is not killed does


def learn(command: Command, folder: Path) -> tuple[dict[str, Any], float, int]:
    """The results of a command, its seconds, and its number of operations on files."""
    out = folder / "once" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    _fill(command, folder, out)
    started = time.perf_counter()
    child = run(command, folder, out)
    code = wait_for(child)
    seconds = time.perf_counter() - started
    if code:
        raise RuntimeError(f"{command.name}: {out.with_name('out.log').read_text()[-2000:]}")
    count = int((folder / f"operations-{child}").read_text())
    return results_of(command, out), seconds, count


def _fill(command: Command, folder: Path, out: Path) -> None:
    """The directory before the command: empty, or with a run that can be certified."""
    out.mkdir(parents=True)
    if command.name == "certify":
        shutil.copytree(world.only(folder / "certifiable"), out / "run")
        shutil.rmtree(out / "run" / "certificate")


def prepare_training(folder: Path) -> None:
    """What a run on a task does if it is not killed."""
    known = {command.name: learn(command, folder) for command in COMMANDS[:1]}
    (folder / "known.json").write_text(json.dumps(known))


def prepare(folder: Path) -> None:
    """The world, and what each command does if it is not killed."""
    world.make_world(folder)
    (folder / "experiments").mkdir()
    shutil.copy(folder / "experiment.py", folder / "experiments" / "table_own.py")
    (folder / "ledger.jsonl").write_bytes(b"".join(world.some_lines()))
    ended = world.call([*world.CERTIFIABLE.split(), "--runs", str(folder / "certifiable")])
    if ended.code:
        raise RuntimeError(ended.last)
    known = {command.name: learn(command, folder) for command in COMMANDS}
    (folder / "known.json").write_text(json.dumps(known))


# Cases


def _case(rng: random.Random, folder: Path, commands: tuple[Command, ...] = COMMANDS) -> Outcome:
    command = rng.choices(commands, [command.weight for command in commands])[0]
    expected, seconds, count = json.loads((folder / "known.json").read_text())[command.name]
    out = folder / f"case-{os.getpid()}" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    _fill(command, folder, out)
    kills = [_kill(rng, command, folder, out, seconds, count) for _ in range(rng.choice((1, 1, 2)))]
    hit = any(was_hit for _, was_hit in kills)
    label = f"{command.name}: {'same bits' if hit else 'ended before the kill'}"
    code, tries = _restart(command, folder, out)
    wrong = differences(expected, json.loads(json.dumps(results_of(command, out))))
    if code:
        wrong = f"the restart exits with {code}: {_log(out)}"
    elif left := world.remains(out):
        wrong = f"left behind: {left}"
    if tries > 1:
        label = f"{command.name}: same bits after the orphans"
    words = command.words.format(folder="FOLDER", out="OUT")
    text = f"statemix {words}\n    {'; '.join(story for story, _ in kills)}: {wrong}"
    return Outcome(label, text if wrong else "") if not wrong else Outcome("lost", text)


def _kill(
    rng: random.Random, command: Command, folder: Path, out: Path, seconds: float, count: int
) -> tuple[str, bool]:
    """Start the command and kill it, or a worker of it; return the instant, and if it was hit."""
    if command.name != "sweep" and rng.random() < 0.6:
        limit = rng.randrange(1, count + 1)
        code = wait_for(run(command, folder, out, limit))
        return f"killed at operation {limit} of {count}", code == -signal.SIGKILL
    pause = rng.uniform(0.0, 1.1 * seconds)
    victim = rng.choice(("parent", "worker", "all")) if command.name == "sweep" else "all"
    child = run(command, folder, out)
    time.sleep(pause)
    workers = _children(child)
    with suppress(ProcessLookupError):
        if victim == "parent":
            os.kill(child, signal.SIGKILL)
        elif victim == "worker":
            os.kill(rng.choice(workers or [child]), signal.SIGKILL)
        else:
            os.killpg(child, signal.SIGKILL)
    hit = wait_for(child) == -signal.SIGKILL or (victim == "worker" and bool(workers))
    return f"{victim} killed after {pause:.3f} s", hit


def _children(process: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def _restart(command: Command, folder: Path, out: Path) -> tuple[int, int]:
    """Run the command again at once, and once more if a worker or an orphan was in its way."""
    code = wait_for(run(command, folder, out))
    if code and "Another process" in _log(out):
        time.sleep(2)
        return wait_for(run(command, folder, out)), 2
    if code == 0 or "exists" not in _log(out):
        return code, 1
    # `lm prepare` and `lm export` overwrite nothing: the killed process had finished.
    return 0, 1


def _log(out: Path) -> str:
    return out.with_name("out.log").read_text()[-3000:]


def differences(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """The names of results that differ."""
    names = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    return f"other results: {', '.join(names)}" if names else ""


KIND = Kind("kills", "kills and restarts", 15, _case, prepare, seconds=120)
_TRAIN = partial(_case, commands=COMMANDS[:1])
SMALL = Kind("training", "kills of training", 1, _TRAIN, prepare_training, 120, range(4))
