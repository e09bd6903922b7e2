"""The demo: ten small models on two tasks, trained in minutes on a laptop."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from statemix.analysis.eigenvalues import collect_eigenvalues
from statemix.demo.cells import DemoCell, cells
from statemix.demo.page import Panel
from statemix.sweep.engines import run_locally
from statemix.train import RunConfig
from statemix.train.metrics import measure_accuracy
from statemix.train.trained import load_trained

__all__ = ["Observer", "train_panels"]

Observer = Callable[[dict[str, RunConfig], str, str, Any], None]
LONG = {"s3": 100, "cycle_nav": 100}
TITLES = {"s3": "products of permutations of three things", "cycle_nav": "walks on a cycle of five"}


def train_panels(seed: int, workers: int, observe: Observer) -> list[Panel]:
    """Train every model of the demo and measure it; `observe` receives each event of the runs."""
    models = cells(seed)
    configs = {cell.config.id: cell.config for cell in models}
    curves: dict[str, list[tuple[int, float]]] = {id_: [] for id_ in configs}
    with tempfile.TemporaryDirectory() as folder:
        for kind, id_, content in run_locally(list(configs.values()), Path(folder), workers):
            if kind == "epoch":
                curves[id_].append((content["step"], content["validation"]))
            elif content[0] is None:
                raise RuntimeError(f"The demo's run {id_} failed: {content[1]}")
            observe(configs, kind, id_, content)
        return [look_at(cell, Path(folder), curves[cell.config.id]) for cell in models]


def look_at(cell: DemoCell, folder: Path, curve: list[tuple[int, float]]) -> Panel:
    """Evaluate a trained model at both lengths, and collect its eigenvalues."""
    config, task, model = load_trained(folder / cell.config.id)
    length = config.length or task.length
    short, long = (
        measure_accuracy(model, task.examples(1000, T, np.random.default_rng([7, T])), task.classes)
        for T in (length, LONG[config.task])
    )
    spectrum = collect_eigenvalues(model, task, length, count=16)
    points = spectrum[0].flatten().numpy() if spectrum else np.empty(0, dtype=complex)
    return Panel(
        TITLES[config.task],
        cell.label,
        cell.states,
        length,
        short.token,
        LONG[config.task],
        long.token,
        curve,
        points,
    )
