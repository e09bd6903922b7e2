"""Small runs, texts and models that the kinds of faults share, and how a command is called."""

import contextlib
import io
import json
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from texts import write_texts

from statemix.cli import main
from statemix.files.tensors import hash_of_file, hash_of_tensors, read_tensors

__all__ = ["Ended", "bits", "call", "fork", "make_world", "preload", "wait_for"]

ROOT = Path(__file__).parents[2]
_TIMES = {"seconds", "cpu_seconds", "train_seconds", "tokens_per_second", "utilisation", "by"}
_IGNORED = ("lock", ".claims", "texts")
_SIZES = "--length 4 --examples 64 --test-examples 32 --batch 16 --epochs 3 --width 8"
TRAIN = f"train s2 {_SIZES} --blocks 2 --block-size 2"
CERTIFIABLE = (
    "train s2 --preset tracking --blocks 8 --block-size 2 --width 16 --examples 2000 --length 16"
)
PREPARE = "--vocab 280 --validation 0.1 --shard-tokens 1000"
_LM = "--preset 180k-bdlru-m4 --width 16 --layers 1 --options n_blocks=4 block_size=3"
LM_TRAIN = f"{_LM} --length 16 --batch 2 --steps 12 --save-every 4 --keep 2 --peak-tflops 1"

EXPERIMENT = """
from dataclasses import replace
from statemix.config.model import ModelConfig
from statemix.config.task import RunConfig

def cells():
    model = ModelConfig(options={"n_blocks": 2, "block_size": 2}, width=8)
    sizes = dict(length=4, train_examples=64, test_examples=32, batch=16, epochs=2)
    for seed in range(3):
        yield RunConfig("s2", model, seed=seed, **sizes)
"""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code, its output, and the traceback of an error."""

    code: int
    out: str
    err: str
    trace: str = ""

    @property
    def is_clear(self) -> bool:
        """True if the command succeeded, or refused with an explanation."""
        return not self.trace and "Traceback (most recent" not in self.err

    @property
    def last(self) -> str:
        """The last line of what it said."""
        lines = (self.trace or self.err or self.out).strip().splitlines()
        return lines[-1] if lines else ""


def call(words: list[str], function: Callable[[list[str]], Any] = main) -> Ended:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    trace = ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("default")
                function(words)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code, trace = 1, traceback.format_exc()
    if isinstance(code, str):
        return Ended(1, out.getvalue(), f"{err.getvalue()}{code}\n", trace)
    return Ended(code or 0, out.getvalue(), err.getvalue(), trace)


def fork(function: Callable[[], Any], out: Path | None = None) -> int:
    """Call a function in a forked process; its exit code is that of a command."""
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        os.setpgid(0, 0)
        if out is not None:
            file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            sys.stdout, sys.stderr = os.fdopen(file, "w"), os.fdopen(os.dup(file), "w")
            os.dup2(file, 1)
            os.dup2(file, 2)
        function()
        code = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = 1 if isinstance(end.code, str) else int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
    return child


def wait_for(child: int) -> int:
    """The exit code of a forked process."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# What files hold, without the times


def bits(directory: Path) -> dict[str, str]:
    """A hash of every file below `directory` but its times, by the relative path."""
    return {
        str(path.relative_to(directory)): _hash(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(name in str(path.relative_to(directory)) for name in _IGNORED)
    }


def _hash(path: Path) -> str:
    if path.suffix == ".safetensors":
        tensors, header = read_tensors(path)
        return hash_of_tensors(tensors, json.dumps(_timeless(header), sort_keys=True))
    if path.suffix in (".json", ".jsonl"):
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        text = "\n".join(sorted(json.dumps(_timeless(json.loads(line))) for line in lines))
        return sha256(text.encode()).hexdigest()
    return hash_of_file(path)


def _timeless(value: Any) -> Any:
    """A value from JSON without the times in it, and without hashes of text that has times."""
    if isinstance(value, dict):
        return {
            key: _timeless(each)
            for key, each in value.items()
            if key not in _TIMES and key != "sha256" and not _is_shard(key)
        }
    if isinstance(value, list):
        return [_timeless(each) for each in value]
    if isinstance(value, str) and value.startswith("{"):
        return _timeless(json.loads(value))
    return value


def _is_shard(key: str) -> bool:
    return re.fullmatch(r"shard-\d+-.*\.safetensors", key) is not None


def remains(directory: Path) -> list[str]:
    """Temporary files that were left behind."""
    return [
        str(path.relative_to(directory))
        for path in directory.rglob("*")
        if path.name.endswith((".part", ".old"))
    ]


# The files


def preload() -> None:
    """Import what commands import when they run, so that forked processes need not."""
    import statemix.commands.views.certify
    import statemix.commands.views.eval
    import statemix.commands.views.inspect
    import statemix.commands.views.leaderboard
    import statemix.commands.views.lm_eval
    import statemix.commands.views.lm_generate
    import statemix.commands.views.lm_prepare
    import statemix.commands.views.lm_train
    import statemix.commands.views.report
    import statemix.commands.views.sweep
    import statemix.commands.views.train
    import statemix.hf.export
    import statemix.train.loop  # noqa: F401


def make_world(folder: Path, *, exported: bool = True) -> None:
    """A text, its tokens, a run on a task, a language model and its export."""
    write_texts(folder / "texts", documents=16, sentences=6)
    (folder / "experiment.py").write_text(EXPERIMENT)
    _must(f"lm prepare {folder / 'texts'} --out {folder / 'data'} {PREPARE}")
    _must(f"lm train {folder / 'data'} --out {folder / 'lm'} {LM_TRAIN}")
    if exported:
        _must(f"lm export {folder / 'lm' / 'final'} {folder / 'export'}")
    with saving_always():
        _must(f"{TRAIN} --runs {folder / 'runs'}")


def _must(words: str) -> None:
    ended = call(words.split())
    if ended.code:
        raise RuntimeError(f"statemix {words}: {ended.last}")


@contextlib.contextmanager
def saving_always() -> Iterator[None]:
    """Runs on tasks write a checkpoint after every epoch."""
    from statemix.train import loop

    before = loop.CHECKPOINT_SECONDS
    loop.CHECKPOINT_SECONDS = 0
    try:
        yield
    finally:
        loop.CHECKPOINT_SECONDS = before


def some_lines() -> list[bytes]:
    """Some lines of the ledger of the repository."""
    path = ROOT / "results" / "ledger.jsonl"
    return path.read_bytes().splitlines(keepends=True)[:6]


def only(directory: Path) -> Path:
    """The only directory in `directory`."""
    (found,) = (path for path in directory.iterdir() if path.is_dir())
    return found
