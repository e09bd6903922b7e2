"""The demo: ten small models on two tasks, trained in minutes on a laptop."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from statemix.analysis.eigenvalues import collect_eigenvalues
from statemix.demo.cells import DemoCell
from statemix.demo.page import Panel
from statemix.sweep.ledger import Ledger
from statemix.sweep.run import Observer, sweep
from statemix.train.metrics import measure_accuracy
from statemix.train.trained import load_trained

__all__ = ["train_panels"]

_LONG = 100  # tokens of the longer test sequences
_TITLES = {
    "s3": "products of permutations of three things",
    "cycle_nav": "walks on a cycle of five",
}


def train_panels(models: list[DemoCell], workers: int, observe: Observer) -> list[Panel]:
    """Train the models of the demo and measure them; `observe` receives the sweep's messages."""
    curves: dict[str, list[tuple[int, float]]] = {cell.config.id: [] for cell in models}

    def collect(kind: str, id_: str, content: Any) -> None:
        if kind == "report":
            curves[id_].append((content["step"], content["validation"]))
        if kind == "failed":
            raise RuntimeError(f"The demo's run {id_} failed: {content}")
        observe(kind, id_, content)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configs = [cell.config for cell in models]
        ledger = Ledger(folder / "ledger.jsonl")
        sweep(configs, ledger, folder, engine="local", workers=workers, observe=collect)
        return [_look_at(cell, folder, curves[cell.config.id]) for cell in models]


def _look_at(cell: DemoCell, folder: Path, curve: list[tuple[int, float]]) -> Panel:
    """Evaluate a trained model at both lengths, and collect its eigenvalues."""
    config, task, model = load_trained(folder / cell.config.id)
    length = config.length or task.length
    short, long = (
        measure_accuracy(model, task.examples(1000, T, np.random.default_rng([7, T])), task.classes)
        for T in (length, _LONG)
    )
    spectrum = collect_eigenvalues(model, task, length, count=16)
    points = spectrum[0].flatten().numpy() if spectrum else np.empty(0, dtype=complex)
    return Panel(
        _TITLES[config.task],
        cell.label,
        cell.states,
        length,
        short.token,
        _LONG,
        long.token,
        curve,
        points,
    )
