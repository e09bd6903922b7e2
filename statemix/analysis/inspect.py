"""What a run is, how it went, and what its transitions do."""

import json
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from statemix.analysis.spectrum import Spectrum, eigenvalues, transitions
from statemix.layers import BDLRU, HLRU
from statemix.models import Tagger
from statemix.runs.layout import METRICS
from statemix.tasks import Task
from statemix.train.command import load_trained, warn_of_changes
from statemix.train.loop import read_result


def collect_eigenvalues(model: nn.Module, task: Task, length: int, count: int = 64) -> list[Tensor]:
    """Eigenvalues (B, T, n, m) of each layer of a tagger along fresh sequences; empty where the mixer has no such matrices."""
    if not isinstance(model, Tagger):
        return []
    inputs: list[Tensor] = []
    mixers = [block.mixer for block in model.blocks if isinstance(block.mixer, BDLRU | HLRU)]
    handles = [
        mixer.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
        for mixer in mixers
    ]
    tokens = torch.from_numpy(task.examples(count, length, np.random.default_rng(0)).inputs)
    with torch.no_grad():
        model(tokens)
        found = [
            eigenvalues(transitions(mixer, x)) for mixer, x in zip(mixers, inputs, strict=True)
        ]
    for handle in handles:
        handle.remove()
    return found


def print_inspection(directory: Path) -> None:
    """Print config, course and spectrum."""
    config, task, model = load_trained(directory)
    warn_of_changes(config, directory)
    console = Console()
    facts = Table(show_header=False, box=None)
    for name, value in json.loads(config.to_json()).items():
        facts.add_row(name, str(value))
    facts.add_row("parameters", f"{sum(p.numel() for p in model.parameters()):,}")
    console.print(facts)
    epochs = read_lines(directory / METRICS)
    course = Table("epoch", "loss", "training", "validation", title="course", title_justify="left")
    for epoch in epochs[:: max(1, len(epochs) // 10)]:
        course.add_row(
            str(epoch["epoch"] + 1),
            f"{epoch['loss']:.3f}",
            f"{epoch['train']:.3f}",
            f"{epoch['validation']:.3f}",
        )
    console.print(course)
    result = read_result(config, directory)
    if result is not None:
        console.print("test", result.test)
    for number, spectrum in enumerate(
        collect_eigenvalues(model, task, config.length or task.length), 1
    ):
        console.print(describe(number, spectrum), markup=False)


def read_lines(path: Path) -> list[dict[str, float]]:
    """The lines of JSON that can be read; a killed process may have left the last one cut off."""
    lines = []
    for line in path.read_text().splitlines():
        with suppress(json.JSONDecodeError):
            lines.append(json.loads(line))
    return lines


def describe(number: int, values: Tensor) -> str:
    """A layer's eigenvalues in a sentence."""
    spectrum = Spectrum(values)
    return (
        f"layer {number}: |λ| up to {spectrum.radii.max().item():.3f}, real part from {values.real.min().item():.3f}, "
        f"{spectrum.negative:.1%} negative, {spectrum.complex:.1%} complex"
    )
