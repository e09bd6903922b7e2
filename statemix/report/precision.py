"""Training in float32 and in bfloat16 side by side: a table."""

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from statemix.report.tables import markdown_table
from statemix.sweep import Ledger, load_places

__all__ = ["PRECISION", "precision_table"]

PRECISION = "low_precision.py"


def precision_table(experiment: Path, ledger: Path) -> str:
    """A table with one line for each model and precision."""
    done = {entry.id: entry for entry in Ledger(ledger).read()[0] if entry.status == "done"}
    found: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    for cell in load_places(experiment):
        result = done[cell.config.id].result if cell.config.id in done else None
        if result is not None:
            found[cell.row, cell.column, cell.recipe].append(result)
    if not found:
        return f"The ledger has no run of `experiments/{PRECISION}` yet.\n"
    rows = [(*place, str(len(results)), _shown(results)) for place, results in found.items()]
    return markdown_table(("model", "task", "precision", "runs", "result"), sorted(rows))


def _shown(results: list[dict[str, Any]]) -> str:
    """The mean perplexity; for trackers, proofs, and the lowest accuracy at the longest length."""
    if "perplexity" in results[0]:
        values = [result["perplexity"] for result in results]
        spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
        return f"perplexity {statistics.mean(values):.2f}{spread}"
    proved = sum(bool((result["certificate"] or {}).get("holds")) for result in results)
    steps = statistics.median(result["steps"] for result in results)
    curves = [result["measured"]["by_length"] for result in results]
    longest = max(curves[0], key=int)
    lowest = min(curve[longest] for curve in curves)
    return f"{proved} of {len(results)} proved, {lowest:.3f} at {longest}, {steps:,.0f} steps"
