"""What was proved about the models of an experiment, and what long random words say about them.

The runs are in the ledger. Beside it, `long_words.jsonl` has a line for each proved model that has
read long random words. Only training that restarts until the model is proved is shown; the time of
training without proofs is compared where the same seeds were trained in both ways.
"""

import json
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statemix.config.task import RunConfig
from statemix.report.tables import markdown_table
from statemix.sweep import Cell, Entry, Ledger, load_places

__all__ = ["CERTIFIED", "LONG_WORDS", "certified_table"]

CERTIFIED = "certified.py"
LONG_WORDS = "long_words.jsonl"
_PROVED, _COMPARED = "restarts", "softmax"  # recipes of the experiment
_COLUMNS = (
    "model",
    "task",
    "proved",
    "restarts",
    "CPU s",
    "of softmax",
    "worst accuracy",
    "words: models × number × length",
    "answers checked",
    "wrong",
)
Runs = list[tuple[Cell, Entry]]


def certified_table(experiment: Path, ledger: Path) -> str:
    """A table with one line per model and task whose runs were to be proved."""
    done = {entry.id: entry for entry in Ledger(ledger).read()[0] if entry.status == "done"}
    groups: dict[tuple[str, str], dict[str, Runs]] = defaultdict(lambda: defaultdict(list))
    for cell in load_places(experiment):
        if cell.config.id in done:
            groups[cell.row, cell.column][cell.recipe].append((cell, done[cell.config.id]))
    checked = _read_checked(ledger.with_name(LONG_WORDS))
    rows = [
        (*place, *_proofs(runs[_PROVED]), *_ratio(runs), *_words(runs[_PROVED], checked))
        for place, runs in groups.items()
        if runs[_PROVED]
    ]
    return markdown_table(_COLUMNS, rows)


def _read_checked(path: Path) -> list[dict[str, Any]]:
    """The words that proved models have read."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def _proofs(runs: Runs) -> tuple[str, ...]:
    """How many seeds are proved, restarts of all, and median and range of the CPU time."""
    results = [_result(entry) for _, entry in runs]
    seconds = [result["cpu_seconds"] for result in results]
    return (
        f"{sum(_is_proved(result) for result in results)} of {len(runs)}",
        str(sum(result["restarts"] for result in results)),
        f"{statistics.median(seconds):.0f} ({min(seconds):.0f}–{max(seconds):.0f})",
    )


def _ratio(runs: dict[str, Runs]) -> tuple[str]:
    """The ratio of median CPU times over the seeds that both recipes have."""
    proved, compared = ({_seed(cell): e for cell, e in runs[r]} for r in (_PROVED, _COMPARED))
    shared = proved.keys() & compared.keys()
    if not shared:
        return ("",)
    own, others = (
        statistics.median(_result(entries[seed])["cpu_seconds"] for seed in shared)
        for entries in (proved, compared)
    )
    return (f"{own / others:.2f} ({len(shared)} seeds)",)


def _words(runs: Runs, checked: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The worst accuracy of a trained model, and what proved ones answer to long words."""
    accuracies = [x for _, entry in runs for x in _result(entry)["measured"]["by_length"].values()]
    ids = {entry.id for _, entry in runs}
    lines = [line for line in checked if line["run"] in ids]
    if not lines:
        return (f"{min(accuracies):.4f}", "", "", "")
    return (
        f"{min(accuracies):.4f}",
        _sizes(lines),
        f"{sum(line['answers'] for line in lines):,}",
        f"{sum(line['wrong'] for line in lines):,}",
    )


def _sizes(lines: Sequence[dict[str, Any]]) -> str:
    """How many models have read how many words of which lengths."""
    sizes = [(line["sequences"], line["length"]) for line in lines]
    return ", ".join(f"{sizes.count((n, T))} × {n} × {T:,}" for n, T in sorted(set(sizes))[::-1])


def _is_proved(result: dict[str, Any]) -> bool:
    certificate = result.get("certificate")
    return bool(certificate and certificate["holds"])


def _result(entry: Entry) -> dict[str, Any]:
    assert entry.result is not None
    return entry.result


def _seed(cell: Cell) -> int:
    assert isinstance(cell.config, RunConfig)
    return cell.config.seed
