"""Wrong command lines: a clear error, or honest work; never a traceback, never a long silence.

A line is a small command that works, with one to three changes. Lines that are accepted are cut
short as soon as they train, measure or generate.
"""

import inspect
import json
import os
import random
import re
import shutil
import signal
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from faults import world
from faults.kills import forking_sweeps
from faults.runner import Kind, Outcome, note
from faults.world import Ended, call
from statemix import cli
from statemix.layers import MIXERS

__all__ = ["KIND"]

LINES = 10  # in a case
LONGEST = 20.0  # seconds of computing before a line must have ended, or be at work
BACKWARDS = 3
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
_AT_WORK = (
    *("loop.py", "trainer.py", "generate.py", "metrics.py", "measure.py", "evaluate.py"),
    *("finish.py", "sequences.py", "long_words.py", "task.py", "mad.py", "automaton.py"),
    *("error.py", "decode.py", "memory.py", "speed.py", "spectrum.py", "eigenvalues.py"),
)

_TRAIN = "train s2 --length 4 --examples 32 --test-examples 16 --batch 16 --epochs 1 --width 8"
COMMANDS = (
    f"{_TRAIN} --blocks 2 --block-size 2 --runs R",
    "train parity --length 8 --examples 32 --test-examples 16 --batch 16 --epochs 1 --width 8",
    "train recall --mixer hlru --examples 32 --test-examples 16 --batch 16 --steps 2 --width 8",
    "eval RUN --lengths 4 8 --examples 16",
    "inspect RUN",
    "certify --verify CERTIFICATE",
    "certify RUN",
    "sweep EXPERIMENT --dry-run",
    "sweep EXPERIMENT --workers 1 --limit 1",
    "leaderboard",
    "report --ledger LEDGER --experiments EXPERIMENTS --bench none --out O",
    "report --coverage --ledger LEDGER",
    "lm prepare TEXTS --vocab 260 --out O",
    "lm prepare stories:swaps,stories=20,size=3 --out O",
    f"lm train DATA --out O {world.LM_TRAIN}",
    "lm eval MODEL DATA --batch 4 --length 16",
    "lm eval MODEL stories:swaps --stories 2 --events 1",
    "lm generate MODEL cat --tokens 4",
    "lm ngram DATA --order 2",
    "lm export MODEL O",
    "lm presets",
    "tasks",
    "tasks --dot parity",
    "bench speed --parts scan --blocks 2 --length 8 --batch 1 --rounds 1 --rivals loop",
    "bench error --blocks 2 --length 8 --batch 1 --block-sizes 2 --permutation-length 8",
    "bench table BENCH",
    "info",
    "info --json",
)
_NUMBERS = (
    *("-1", "0", "1", "2", "3", "7", "2147483648", "4294967296", "9223372036854775808"),
    *("1e20", "1e-320", "1e400", "nan", "inf", "-inf", "0.5", "-0.5", "1_0", "0x10", "٣", "1e3"),
)
_WORDS = (
    *("", " ", "x", "None", "True", "[]", "{}", "a=b", "a=", "=b", "n_blocks=0", "n_blocks=1e9"),
    *("gate=x", "../..", "/", "/dev/null", "/proc/self/mem", "nowhere/at/all", "x" * 5000),
    *("\udcff", "é\u202e", "a\nb", "[bold]", ":smile:", "%s", "{0}", "-", "--", "hf:", "hf:../.."),
    *("stories:", "stories:x", "stories:cups,size=99", "bdlru", "softmax", "s9", "z1", "d0"),
)


class _Enough(BaseException):
    """A line does what it says, and need not go on."""


def _prepare(folder: Path) -> None:
    world.make_world(folder)
    (folder / "experiments").mkdir()
    shutil.move(folder / "experiment.py", folder / "experiments" / "table_own.py")
    (folder / "ledger.jsonl").write_bytes(b"".join(world.some_lines()))
    (folder / "options.json").write_text(json.dumps(_options()))


def _options() -> dict[str, list[str]]:
    """The options of each command, from its help text."""
    found = {}
    for line in COMMANDS:
        words = [word for word in line.split() if word.islower() and not word.startswith("-")]
        name = " ".join(words[: 2 if words[0] in ("lm", "bench") else 1])
        helped = call([*name.split(), "--help"])
        found[line] = sorted(set(_OPTION.findall(helped.out)) - {"--help"})
    return found


def _places(folder: Path) -> dict[str, str]:
    """What the words in capitals stand for."""
    return {
        "RUN": str(world.only(folder / "runs")),
        "CERTIFICATE": str(world.ROOT / "examples/models/mod_arith/certificate.json"),
        "EXPERIMENT": str(folder / "experiments" / "table_own.py"),
        "EXPERIMENTS": str(folder / "experiments"),
        "LEDGER": str(folder / "ledger.jsonl"),
        "TEXTS": str(folder / "texts"),
        "DATA": str(folder / "data"),
        "MODEL": str(folder / "lm" / "final"),
        "BENCH": str(world.ROOT / "results" / "bench" / "throughput.jsonl"),
    }


# Lines


def _line(rng: random.Random, options: dict[str, list[str]], places: dict[str, str]) -> list[str]:
    """A command with one to three changes."""
    command = rng.choice(COMMANDS)
    words = [places.get(word, word) for word in command.split()]
    first = 2 if words[0] in ("lm", "bench") else 1
    for _ in range(rng.choice((1, 1, 2, 3))):
        _change(rng, words, first, options[command])
    return words


def _change(rng: random.Random, words: list[str], first: int, options: list[str]) -> None:
    way = rng.choice((*("option",) * 4, "setting", "value", "value", "drop", "twice", "misspell"))
    value = rng.choice(_NUMBERS if rng.random() < 0.65 else _WORDS)
    if way == "option" and options:
        words += [rng.choice(options), value]
    elif way == "setting" and "--options" in options:
        mixer = rng.choice(sorted(MIXERS))
        own = list(inspect.signature(MIXERS[mixer]).parameters)
        words += ["--mixer", mixer, "--options", f"{rng.choice(own)}={value}"]
    elif way == "value":
        words[rng.randrange(len(words)) if rng.random() < 0.1 else -1] = value
    elif way == "drop" and len(words) > first:
        del words[rng.randrange(first, len(words))]
    elif way == "twice":
        words.insert(rng.randrange(first, len(words) + 1), rng.choice(words))
    elif way == "misspell" and options:
        word = rng.choice(options)
        words += [word[:-1] + rng.choice(("", "x", "-", word[-1] * 2)), value]


# Calls


def _count_backwards() -> None:
    """Stop a line after a few backward passes, in this process and in those that it forks."""
    plain = torch.Tensor.backward
    counted = [0]

    def backward(self: torch.Tensor, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        counted[0] += 1
        if counted[0] % BACKWARDS == 0:
            raise _Enough

    torch.Tensor.backward = backward  # type: ignore[method-assign]


def _on_time(signal_number: int, frame: FrameType | None) -> None:
    """Raise `_Enough` if the line is at work, else an error that says where it is."""
    names = _files(frame)
    if not set(names).isdisjoint(_AT_WORK):
        raise _Enough
    raise TimeoutError(f"more than {LONGEST:g} s in {', '.join(names[:6])}")


def _on_waiting(signal_number: int, frame: FrameType | None) -> None:
    """Raise `_Enough` if the line is at work, with pauses in which it does not compute."""
    if not set(_files(frame)).isdisjoint(_AT_WORK):
        raise _Enough


def _files(frame: FrameType | None) -> list[str]:
    """The names of the files on the stack, the innermost first."""
    names = []
    while frame is not None:
        names.append(Path(frame.f_code.co_filename).name)
        frame = frame.f_back
    return names


_ready: set[int] = set()


def _case(rng: random.Random, folder: Path) -> Outcome:
    """Ten lines."""
    if os.getpid() not in _ready:
        _ready.add(os.getpid())
        _count_backwards()
        forking_sweeps()
        signal.signal(signal.SIGPROF, _on_time)
        signal.signal(signal.SIGALRM, _on_waiting)
    place = folder / f"case-{os.getpid()}"
    options = json.loads((folder / "options.json").read_text())
    places = _places(folder)
    labels: Counter[str] = Counter()
    for _ in range(LINES):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        os.chdir(place)
        words = _line(rng, options, places)
        text = " ".join(map(repr, ["statemix", *words]))
        note(folder, text)
        label, wrong = _judge(_call(words))
        if wrong:
            return Outcome(label, f"{text}\n{wrong}", count=LINES)
        labels[label] += 1
    return Outcome("", count=LINES, labels=dict(labels))


def _call(words: list[str]) -> Ended:
    """Run a line, with a limit on its computing."""
    threads = torch.get_num_threads()
    arguments = sys.argv
    sys.argv = ["statemix"]
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    signal.setitimer(signal.ITIMER_REAL, 3 * LONGEST, LONGEST)
    try:
        return call(words, cli.main)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.argv = arguments
        torch.set_num_threads(threads)
        with suppress(Exception):
            torch.distributed.destroy_process_group()


def _judge(ended: Ended) -> tuple[str, str]:
    if "_Enough" in ended.trace.splitlines()[-1:] or ended.trace.endswith("lines._Enough\n"):
        return "at work", ""
    if "more than 20 s" in ended.trace:
        return "over 20 s", ended.trace
    if not ended.is_clear:
        return "traceback", ended.trace or ended.err
    if ended.code == 0:
        return "accepted", ""
    return ("refused", "") if ended.err.strip() or ended.out.strip() else ("silent", "no message")


KIND = Kind("lines", "wrong command lines", 11, _case, _prepare, seconds=300)
