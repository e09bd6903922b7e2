"""Hypothesis draws JSON, bytes and headers for every parser: a value, or a ValueError.

An error of another type, or a text of an error that cannot be printed, is a failure.
"""

import json
import random
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from faults.runner import Kind, Outcome
from statemix.config.build import build
from statemix.config.lm import run_config_from_dict
from statemix.config.model import lm_config_from_dict
from statemix.config.task import config_from_dict
from statemix.data.sources import from_files
from statemix.data.tokens import Meta, open_data
from statemix.files.json_files import parse_json, parse_object, read_rows
from statemix.files.tensors import dtypes_in, read_tensors
from statemix.lm.result import LMResult
from statemix.proof.saved import load_certificate
from statemix.runs.checkpoint import load_checkpoint
from statemix.runs.metrics import read_metrics, read_reports
from statemix.sweep import Ledger
from statemix.train.state import Counters, EpochReport, RunResult, SavedState

__all__ = ["KIND"]

EXAMPLES = 100  # in a case

_NUMBERS = st.integers() | st.floats() | st.sampled_from([2**31, 2**63, 2**64, 10**400, 1e308])
_SCALARS = st.none() | st.booleans() | _NUMBERS | st.text(max_size=12)


def _json(keys: SearchStrategy[str]) -> SearchStrategy[Any]:
    """Values whose objects use `keys`."""
    return st.recursive(
        _SCALARS,
        lambda below: st.lists(below, max_size=4) | st.dictionaries(keys, below, max_size=8),
        max_leaves=25,
    )


def _keys(*kinds: type) -> SearchStrategy[str]:
    """Names of fields, so that some values fit."""
    names = sorted({name for kind in kinds for name in kind.__dataclass_fields__})  # type: ignore[attr-defined]
    return st.sampled_from([*names, "format", "version", "splits", "model", "task", "config"])


_ANY_KEYS = _keys(Meta, RunResult, Counters, EpochReport, SavedState, LMResult)
_VALUES = _json(_ANY_KEYS)
_OBJECTS = st.dictionaries(_ANY_KEYS, _VALUES, max_size=10)
_TEXTS = _VALUES.map(json.dumps) | st.text() | _OBJECTS.map(json.dumps)
_BYTES = st.binary(max_size=400) | _TEXTS.map(lambda text: text.encode(errors="surrogatepass"))


def _safetensors() -> SearchStrategy[bytes]:
    """Files with a length, a header and some bytes."""
    shape = st.lists(st.integers(-1, 4) | st.just(2**62), max_size=3)
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "I32", "BF16", "F8_E4M3", "BOOL", "X", ""]),
            "shape": shape,
            "data_offsets": st.lists(st.integers(-1, 40), min_size=1, max_size=3),
        }
    )
    header = st.dictionaries(
        st.sampled_from(["model.x", "best.y", "__metadata__"]), entry | _VALUES
    )

    def assembled(value: Any, size: int | None, rest: bytes) -> bytes:
        text = json.dumps(value).encode(errors="surrogatepass")
        return (len(text) if size is None else size).to_bytes(8, "little") + text + rest

    sizes = st.none() | st.integers(0, 2**64 - 1)
    return st.builds(assembled, header, sizes, st.binary(max_size=64))


def _of_file(name: str, read: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A reader of files as one of bytes."""

    def parse(data: bytes) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_bytes(data)
            return read(Path(folder) / name)

    return parse


def _documents(path: Path) -> list[str]:
    return list(from_files("a source", [path], "text").read())


_FILES = _BYTES | _safetensors()
TARGETS: dict[str, tuple[SearchStrategy[Any], Callable[[Any], Any]]] = {
    "parse_json": (_BYTES | st.text(), parse_json),
    "parse_object": (_BYTES | st.text(), parse_object),
    "data.json": (_OBJECTS, lambda value: build(Meta, value)),
    "result.json": (_VALUES, lambda value: build(RunResult, value)),
    "counters": (_VALUES, lambda value: build(Counters, value)),
    "state of a checkpoint": (_VALUES, lambda value: build(SavedState, value)),
    "config of a run": (_OBJECTS, config_from_dict),
    "config of a run of text": (_OBJECTS, run_config_from_dict),
    "config of a model": (_OBJECTS, lm_config_from_dict),
    "safetensors": (_FILES, _of_file("x.safetensors", read_tensors)),
    "header of safetensors": (_FILES, _of_file("x.safetensors", dtypes_in)),
    "checkpoint": (_FILES, _of_file("x.safetensors", load_checkpoint)),
    "certificate": (_BYTES, _of_file("certificate.json", load_certificate)),
    "prepared text": (_BYTES, _of_file("data.json", lambda path: open_data(path.parent))),
    "ledger": (_BYTES, _of_file("ledger.jsonl", lambda path: Ledger(path).read())),
    "metrics": (_BYTES, _of_file("m.jsonl", read_metrics)),
    "reports": (_BYTES, _of_file("m.jsonl", lambda path: read_reports(EpochReport, path))),
    "rows": (_BYTES, _of_file("m.jsonl", lambda path: read_rows(EpochReport, path, "Again."))),
    "JSON lines": (_BYTES, _of_file("x.jsonl", _documents)),
    "compressed lines": (_BYTES, _of_file("x.jsonl.gz", _documents)),
    "text": (_BYTES, _of_file("x.txt", _documents)),
}


def _case(rng: random.Random, folder: Path) -> Outcome:
    """A hundred inputs for one parser."""
    name = rng.choice(sorted(TARGETS))
    strategy, parse = TARGETS[name]
    accepted = [0, 0]

    @seed(rng.getrandbits(32))
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def law(value: Any) -> None:
        accepted[1] += 1
        try:
            parse(value)
            accepted[0] += 1
        except (ValueError, FileNotFoundError) as error:
            str(error).encode()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            law()
    except Exception as error:
        notes = "\n".join(getattr(error, "__notes__", []))
        text = f"{name}: {type(error).__name__}: {error}\n{notes}"
        return Outcome("another error", text, count=accepted[1])
    labels = {"parsed": accepted[0], "refused": accepted[1] - accepted[0]}
    return Outcome("", count=accepted[1], labels=labels)


KIND = Kind("fuzz", "inputs drawn by hypothesis", 12, _case, seconds=120, small=range(1))
