"""Mutated files of every kind that is read: refused in clear words, or read as before.

Where a hash of a file's content was written, a file that is accepted gives the same output.
"""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from faults import world
from faults.mutate import ASIDE, mutate
from faults.runner import Kind, Outcome, note
from faults.world import Ended, call
from statemix.sweep import Ledger

__all__ = ["KIND", "SMALL"]

CERTIFIED = world.ROOT / "examples" / "models" / "mod_arith"
_NOT_OUTPUT = re.compile(r"[\d,.]+ (s\b|tokens/s)|\d+\.\d+ MiB")


@dataclass(frozen=True)
class Target:
    """A kind of file, what reads it, and whether a hash of its content is known."""

    name: str
    path: str
    readers: tuple[str, ...]
    hashed: bool = False


TARGETS = (
    Target("config of a run", "runs/*/config.json", ("inspect", "eval", "resume")),
    Target("checkpoint", "runs/*/checkpoint.safetensors", ("inspect", "eval", "resume"), True),
    Target("metrics", "runs/*/metrics.jsonl", ("inspect",)),
    Target("result", "runs/*/result.json", ("inspect", "finished")),
    Target("ledger", "ledger.jsonl", ("ledger", "report", "plan", "leaderboard")),
    Target("description of a text", "data/data.json", ("ngram", "lm resume", "lm eval")),
    Target("tokens", "data/*.bin", ("ngram", "lm resume"), True),
    Target("starts of documents", "data/*.docs", ("ngram", "lm resume")),
    Target("tokenizer of a text", "data/tokenizer.json", ("bytes", "lm eval")),
    Target("config of a model", "lm/final/config.json", ("generate", "lm eval", "export")),
    Target("weights", "lm/final/model.safetensors", ("generate", "lm eval", "export"), True),
    Target("tokenizer", "lm/final/tokenizer.json", ("generate", "lm eval", "export")),
    Target("config of a run of text", "lm/config.json", ("lm resume",)),
    Target("metrics of text", "lm/metrics.jsonl", ("lm resume",)),
    Target("result of text", "lm/result.json", ("lm finished",)),
    Target("state of a checkpoint", "lm/checkpoints/step-00000012/state.json", ("lm resume",)),
    Target("weights of ranks", "lm/checkpoints/step-00000012/*.safetensors", ("lm resume",), True),
    Target("certificate", "certificate/certificate.json", ("verify",)),
    Target("proved weights", "certificate/model.safetensors", ("verify",), True),
    Target("source text", "texts/003.txt", ("prepare",)),
    Target("source lines", "lines.jsonl", ("prepare lines", "lm eval lines")),
    Target("measurements", "bench/throughput.jsonl", ("report",)),
    Target("exported config", "export/config.json", ("transformers",)),
    Target("exported weights", "export/model.safetensors", ("transformers",)),
)


# Readers: how each is called in the folder of a case, and the directory whose bits are its output


def _words(text: str, folder: Path) -> Ended:
    return call(text.format(folder=folder).split())


def _resume(folder: Path, *, finished: bool = False) -> Ended:
    if not finished:
        (world.only(folder / "runs") / "result.json").unlink(missing_ok=True)
    return call([*world.TRAIN.split(), "--runs", str(folder / "runs")])


def _resume_lm(folder: Path, *, finished: bool = False) -> Ended:
    if not finished:
        shutil.rmtree(folder / "lm" / "final")
        (folder / "lm" / "result.json").unlink()
    return _words(f"lm train {{folder}}/data --out {{folder}}/lm {world.LM_TRAIN}", folder)


def _read_ledger(folder: Path) -> Ended:
    def read(words: list[str]) -> None:
        try:
            entries, complaints = Ledger(Path(words[0])).read()
        except ValueError as error:
            raise SystemExit(str(error)) from error
        print([entry.id for entry in entries], complaints)

    return call([str(folder / "ledger.jsonl")], read)


def _load_exported(folder: Path) -> Ended:
    """`from_pretrained` may raise any error: transformers reads these files."""
    import torch
    from transformers import AutoModelForCausalLM

    def load(words: list[str]) -> None:
        try:
            model = AutoModelForCausalLM.from_pretrained(words[0])
        except Exception as error:
            raise SystemExit(f"refused: {error}") from error
        print(model(torch.arange(8)[None]).logits.sum().item())

    return call([str(folder / "export")], load)


Reader = Callable[[Path], Ended]
_LINES = "--batch 4 --length 16"
READERS: dict[str, tuple[Reader, str]] = {
    "inspect": (lambda f: call(["inspect", str(world.only(f / "runs"))]), ""),
    "eval": (
        lambda f: call(
            ["eval", str(world.only(f / "runs")), "--lengths", "4", "8", "--examples", "16"]
        ),
        "",
    ),
    "resume": (_resume, "runs"),
    "finished": (partial(_resume, finished=True), ""),
    "ledger": (_read_ledger, ""),
    "report": (
        partial(
            _words,
            "report --ledger {folder}/ledger.jsonl --experiments {folder}/experiments "
            "--bench {folder}/bench --out {folder}/out",
        ),
        "out",
    ),
    "plan": (
        partial(
            _words,
            "sweep {folder}/experiments/table_own.py --ledger {folder}/ledger.jsonl --dry-run",
        ),
        "",
    ),
    "leaderboard": (partial(_words, "leaderboard --ledger {folder}/ledger.jsonl"), ""),
    "ngram": (partial(_words, "lm ngram {folder}/data --order 3"), ""),
    "bytes": (partial(_words, "lm ngram {folder}/data --order 2 --bytes"), ""),
    "lm resume": (_resume_lm, "lm"),
    "lm finished": (partial(_resume_lm, finished=True), ""),
    "lm eval": (partial(_words, f"lm eval {{folder}}/lm/final {{folder}}/data {_LINES}"), ""),
    "lm eval lines": (
        partial(_words, f"lm eval {{folder}}/lm/final {{folder}}/lines.jsonl {_LINES}"),
        "",
    ),
    "generate": (partial(_words, "lm generate {folder}/lm/final cat --tokens 8"), ""),
    "export": (partial(_words, "lm export {folder}/lm/final {folder}/out"), "out"),
    "verify": (partial(_words, "certify --verify {folder}/certificate/certificate.json"), ""),
    "prepare": (
        partial(_words, f"lm prepare {{folder}}/texts --out {{folder}}/out {world.PREPARE}"),
        "out",
    ),
    "prepare lines": (
        partial(_words, f"lm prepare {{folder}}/lines.jsonl --out {{folder}}/out {world.PREPARE}"),
        "out",
    ),
    "transformers": (_load_exported, ""),
}


# Cases


def _prepare(folder: Path, *, exported: bool = True) -> None:
    world.make_world(folder / "whole", exported=exported)
    whole = folder / "whole"
    (whole / "experiments").mkdir()
    shutil.move(whole / "experiment.py", whole / "experiments" / "table_own.py")
    shutil.copytree(CERTIFIED, whole / "certificate")
    (whole / "bench").mkdir()
    shutil.copy(world.ROOT / "results" / "bench" / "throughput.jsonl", whole / "bench")
    (whole / "ledger.jsonl").write_bytes(b"".join(world.some_lines()))
    texts = [path.read_text() for path in sorted((whole / "texts").iterdir())]
    (whole / "lines.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))


_known: dict[str, tuple[Ended, str]] = {}


def _read(name: str, folder: Path) -> tuple[Ended, str]:
    """Call a reader; its output is what it prints, or the files that it writes."""
    reader, written = READERS[name]
    ended = reader(folder)
    output = _NOT_OUTPUT.sub("#", ended.out)
    if written and not ended.code:
        output = str(_contents(folder / written))
    return ended, output


def _contents(directory: Path) -> dict[str, str]:
    """The bits of every file below `directory`, but of those that a mutation moved aside."""
    found = world.bits(directory)
    return {name: bits for name, bits in found.items() if Path(name).name != ASIDE}


def _fresh(folder: Path) -> Path:
    """An undamaged copy, at the same path for every case of a process."""
    case = folder / f"case-{os.getpid()}"
    shutil.rmtree(case, ignore_errors=True)
    shutil.copytree(folder / "whole", case, copy_function=os.link)
    return case


def _run(rng: random.Random, folder: Path) -> Outcome:
    target = rng.choice(TARGETS)
    name = rng.choice(target.readers)
    if name not in _known:
        _known[name] = _read(name, _fresh(folder))
        if _known[name][0].code:
            raise RuntimeError(f"The reader {name!r} fails: {_known[name][0]}")
    case = _fresh(folder)
    path = rng.choice(sorted(case.glob(target.path)))
    change = mutate(rng, path)
    what = f"{target.name} ({path.name}): {change}; read by {name!r}"
    note(folder, what)
    ended, output = _read(name, case)
    return _judge(target, ended, output == _known[name][1], _known[name][0], what)


def _judge(target: Target, ended: Ended, same: bool, known: Ended, what: str) -> Outcome:
    if not ended.is_clear:
        return Outcome("traceback", f"{what}\n{ended.trace or ended.err}")
    if ended.code:
        return Outcome("refused")
    if same:
        return Outcome("same output")
    if target.hashed:
        return Outcome("silently wrong", f"{what}: accepted, with another output")
    warned = len(ended.err) > len(known.err)
    return Outcome("reported, another output" if warned else "accepted, another content")


# Cases whose readers import little: one for most kinds of files.
_SMALL = (2, 3, 4, 6, 10, 11, 43, 45, 50, 56, 88, 109, 234)
KIND = Kind("files", "mutated files", 260, _run, _prepare, seconds=60)
SMALL = Kind("files", KIND.title, 1, _run, partial(_prepare, exported=False), 30, _SMALL)
