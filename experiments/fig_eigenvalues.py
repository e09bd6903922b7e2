"""Eigenvalues of trained transition matrices on S5, by time step and m (the paper's figure 3)."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from statemix.analysis.eigenvalues import collect_eigenvalues
from statemix.analysis.spectrum import Spectrum
from statemix.models import ModelConfig
from statemix.paper import bdlru, hlru, with_row
from statemix.sweep import Cell
from statemix.tasks import Task
from statemix.train import RunConfig, sharpened_preset

LENGTH, SEQUENCES, BLOCKS = 16, 8, 16
ROWS = [bdlru(5), bdlru(2), bdlru(3), bdlru(1), bdlru(4), hlru(2), hlru(3), hlru(4), hlru(5)]


def cells() -> Iterator[Cell]:
    for row in ROWS:
        model = with_row(ModelConfig(width=64), row, states=160)
        config = sharpened_preset(RunConfig("s5", model, train_examples=100_000, seed=7))
        yield Cell(row, "S5-100k", "tracking", replace(config, epochs=1000, max_steps=2500, hold=0))


def measure(config: RunConfig, task: Task, model: nn.Module) -> dict[str, Any]:
    """Sample the eigenvalues of some blocks at each step, and measure properties of all of them.

    The properties are the shares of negative and complex eigenvalues, and the spectral radius.
    """
    (values,) = collect_eigenvalues(model, task, LENGTH, SEQUENCES)
    spectrum = Spectrum(values)
    blocks = values.transpose(0, 1).flatten(1, 2)  # (T, B n, m)
    chosen = blocks[:, torch.linspace(0, blocks.shape[1] - 1, BLOCKS).long()].flatten(1)
    by_step = [[[round(z.real, 3), round(z.imag, 3)] for z in step] for step in chosen.tolist()]
    shares = {
        "negative": spectrum.negative,
        "complex": spectrum.complex,
        "radius": spectrum.radii.max().item(),
    }
    return {"eigenvalues": by_step, **shares}
