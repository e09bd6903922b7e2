"""The demo: six small models of one task, trained in a minute, and what they have become.

One of them is proved right at every length. Its certificate and automaton, the accuracy of all
models against length, and their eigenvalues are on the demo's page.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statemix.analysis.eigenvalues import collect_eigenvalues
from statemix.analysis.spectrum import Spectrum
from statemix.demo.cells import STATES, DemoCell
from statemix.demo.trained import LENGTHS, Plane, Trained
from statemix.proof import load_certificate
from statemix.proof.saved import CERTIFICATE, SavedCertificate
from statemix.runs.layout import CERTIFICATES
from statemix.sweep.ledger import Ledger
from statemix.sweep.run import Observer, sweep
from statemix.train.metrics import accuracy_by_length
from statemix.train.trained import load_trained

__all__ = ["train_models"]

_SEQUENCES = 16  # of each length


def train_models(models: list[DemoCell], workers: int, observe: Observer) -> list[Trained]:
    """Train the models of the demo and measure them; `observe` receives the sweep's messages."""

    def check(kind: str, id_: str, content: Any) -> None:
        if kind == "failed":
            raise RuntimeError(f"The demo's run {id_} failed: {content}")
        observe(kind, id_, content)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configs = [cell.config for cell in reversed(models)]  # the slowest ones first
        ledger = Ledger(folder / "ledger.jsonl")
        sweep(configs, ledger, folder, engine="local", workers=workers, observe=check)
        results = {entry.id: entry.result or {} for entry in ledger.read()[0]}
        return [_measure(cell, folder, results[cell.config.id]) for cell in models]


def _measure(cell: DemoCell, folder: Path, result: dict[str, Any]) -> Trained:
    """A trained model's accuracy by length, its eigenvalues on a sequence, and its proof."""
    directory = folder / cell.config.id
    config, task, model = load_trained(directory)
    by_length = accuracy_by_length(task, model, LENGTHS, _SEQUENCES, config.seed)
    return Trained(
        cell.label,
        STATES,
        result["parameters"],
        result["cpu_seconds"],
        {int(length): accuracy for length, accuracy in by_length.items()},
        _plane(collect_eigenvalues(model, task, task.length, count=1)),
        _proof_in(directory),
    )


def _plane(found: list[torch.Tensor]) -> Plane | None:
    """The eigenvalues of a layer on one sequence, if the mixer has any."""
    if not found:
        return None
    values = found[0][0]  # (T, n, m)
    spectrum = Spectrum(values)
    return Plane(np.asarray(values.flatten(1)), spectrum.negative, spectrum.complex)


def _proof_in(directory: Path) -> SavedCertificate | None:
    path = directory / CERTIFICATES / CERTIFICATE
    return load_certificate(path) if path.is_file() else None
