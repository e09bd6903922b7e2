"""Brute force beside the proofs: `python experiments/long_words.py --runs runs`.

Every model of `experiments/certified.py` that is proved, and has its files under `--runs`, reads
256 random words of 65,536 letters in float32; the answers are compared with the automaton's. Each
model has a line in `results/long_words.jsonl`; those that have one are left out. `--length` and
`--sequences` change the size, `--limit 1` runs one model only.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from statemix.proof import load_certificate
from statemix.proof.long_words import run_long_words
from statemix.proof.saved import CERTIFICATE
from statemix.runs.layout import CERTIFICATES
from statemix.sweep import load_places
from statemix.tasks import find_task

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "long_words.jsonl")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--length", type=int, default=65_536)
    parser.add_argument("--limit", type=int, default=None)
    options = parser.parse_args()
    size = options.sequences, options.length
    for run in list(_missing(options.runs, options.out, size))[: options.limit]:
        line = _check(options.runs, run, *size)
        with options.out.open("a") as file:
            file.write(json.dumps(line, sort_keys=True) + "\n")
        print(line, flush=True)


def _missing(runs: Path, out: Path, size: tuple[int, int]) -> Iterator[str]:
    """The ids of proved runs of which no line has this size."""
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.is_file() else []
    known = {line["run"] for line in lines if (line["sequences"], line["length"]) == size}
    for cell in load_places(ROOT / "experiments" / "certified.py"):
        path = runs / cell.config.id / CERTIFICATES / CERTIFICATE
        if path.is_file() and cell.config.id not in known:
            yield cell.config.id


def _check(runs: Path, run: str, sequences: int, length: int) -> dict[str, object]:
    """Run the words, and describe the result."""
    path = runs / run / CERTIFICATES / CERTIFICATE
    saved = load_certificate(path)
    automaton = find_task(saved.task, saved.task_options).automaton
    assert automaton is not None
    started = time.process_time()
    found = run_long_words(saved.model, automaton, sequences=sequences, length=length)
    return {
        "run": run,
        "task": saved.task,
        "sha256": json.loads(path.read_text())["sha256"],
        "cpu_seconds": round(time.process_time() - started, 1),
        **asdict(found),
    }


if __name__ == "__main__":
    main()
