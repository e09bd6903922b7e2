"""Kills of ranks and launchers of `torchrun`, and restarts with another number of ranks.

These cases start real processes, which import everything: they are the slow ones.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from faults import world
from faults.runner import Kind, Outcome

__all__ = ["KIND"]

_TRIES = 20  # restarts while ranks without a launcher still hold the run


def _launch(folder: Path, out: Path, ranks: int, way: str) -> subprocess.Popen[bytes]:
    """Start `torchrun` in a separate session."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    words += ["--master-port", str(port), "-m", "statemix", "lm", "train", str(folder / "data")]
    words += ["--out", str(out / "lm"), *world.LM_TRAIN.split(), "--parallel", way]
    words += ["--timeout", "20"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_ERROR_FILE": "/dev/null"}
    with out.with_name("out.log").open("ab") as log:
        return subprocess.Popen(
            words, stdout=log, stderr=log, env=environment, start_new_session=True
        )


def _ranks_of(launcher: int) -> list[int]:
    with suppress(OSError):
        text = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
        return [int(word) for word in text.split()]
    return []


def _prepare(folder: Path) -> None:
    """The text, and the results of two ranks that are not killed."""
    world.make_world(folder)
    known = {}
    for way in ("ddp", "fsdp"):
        out = folder / f"once-{way}" / "out"
        out.mkdir(parents=True)
        started = time.perf_counter()
        if _launch(folder, out, 2, way).wait(timeout=300):
            raise RuntimeError(out.with_name("out.log").read_text()[-3000:])
        known[way] = (_losses(out), time.perf_counter() - started)
    (folder / "known.json").write_text(json.dumps(known))


def _losses(out: Path) -> list[object]:
    """The loss of every step and validation, and the bits of the model."""
    lines = [json.loads(line) for line in (out / "lm" / "metrics.jsonl").open()]
    found = [[line["step"], line.get("loss", line.get("perplexity"))] for line in lines]
    return [found, world.bits(out / "lm" / "final")]


def _case(rng: random.Random, folder: Path) -> Outcome:
    way = rng.choice(("ddp", "fsdp"))
    expected, seconds = json.loads((folder / "known.json").read_text())[way]
    out = folder / f"case-{os.getpid()}" / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    out.mkdir(parents=True)
    victim = rng.choice(("a rank", "the launcher", "all"))
    launcher = _launch(folder, out, 2, way)
    time.sleep(rng.uniform(0.3, 1.0) * seconds)
    children = _ranks_of(launcher.pid)
    ended = launcher.poll() is not None
    victims = {"a rank": children[:1] or [launcher.pid], "the launcher": [launcher.pid]}
    for process in victims.get(victim, [launcher.pid, *children]):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    if victim == "the launcher":
        launcher.wait()
    for _ in range(_TRIES):
        code = _launch(folder, out, 2, way).wait()
        if not code:
            break
        time.sleep(1)
    for process in children:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    launcher.wait()
    story = f"torchrun, two ranks, {way}, {victim} killed"
    if code:
        return Outcome("lost", f"{story}: {out.with_name('out.log').read_text()[-3000:]}")
    if json.loads(json.dumps(_losses(out))) != expected:
        return Outcome("different", f"{story}: other losses or weights")
    if left := world.remains(out):
        return Outcome("left behind", f"{story}: {left}")
    return Outcome(
        f"{way}: ended before the kill" if ended else f"{way}, {victim} killed: same bits"
    )


KIND = Kind("ranks", "kills of ranks and launchers", 1, _case, _prepare, seconds=400)
