"""Render the counts of the suite of faults into docs/explanation/reliability.md.

`python docs/render_faults.py` reads results/faults.json, which `FAULTS=20 FAULTS_PART=1/8 make
test-faults` and its other parts write.
"""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COUNTS = ROOT / "results" / "faults.json"
PAGE = ROOT / "docs" / "explanation" / "reliability.md"
BEGIN, END = "<!-- rendered by python docs/render_faults.py -->\n", "<!-- end -->\n"
KINDS = {
    "kills": "kills of commands that write, and restarts",
    "ranks": "kills of ranks and launchers of `torchrun`, and restarts",
    "disks": "full, read-only and missing disks, denied permissions, links",
    "files": "mutated files",
    "fuzz": "inputs of parsers drawn by hypothesis",
    "calls": "hostile calls of the API, with kernels and without",
    "lines": "wrong command lines",
    "together": "two of everything at once, and a reader",
    "sweeps": "two sweeps with one ledger, and a reader",
    "threads": "threads, forks, changed numbers of threads",
}


def main() -> None:
    PAGE.write_text(with_table(PAGE.read_text(), COUNTS.read_text()))


def with_table(page: str, counts: str) -> str:
    """The page with its table rendered from the counts."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(json.loads(counts))}\n{END}{after}"


def table(parts: list[dict[str, Any]]) -> str:
    """A line for each kind, with its outcomes."""
    own: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for part in parts:
        own[part["kind"]].append(part)
    lines = ["| kind | cases | failed | outcomes |", "|---|---|---|---|"]
    for kind, title in KINDS.items():
        if own[kind]:
            cases = sum(part["cases"] for part in own[kind])
            failed = sum(part["failed"] for part in own[kind])
            lines.append(f"| {title} | {cases:,} | {failed} | {_outcomes(own[kind])} |")
    commits = sorted({part["commit"].removesuffix("+") for part in parts})
    return "\n".join(lines) + f"\n\nCommits: {', '.join(commits)}.\n"


def _outcomes(parts: list[dict[str, Any]]) -> str:
    labels: Counter[str] = Counter()
    for part in parts:
        labels.update(part["labels"])
    return ", ".join(f"{label} {count:,}" for label, count in sorted(labels.items()))


if __name__ == "__main__":
    main()
