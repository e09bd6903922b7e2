"""What `statemix inspect` prints: a run's config, its training curve and its eigenvalues."""

import json
from pathlib import Path

from rich.table import Table
from torch import Tensor

from statemix.analysis.eigenvalues import collect_eigenvalues
from statemix.analysis.spectrum import Spectrum
from statemix.commands.views.console import make_console, say, warn
from statemix.commands.views.train import warn_of_changes
from statemix.runs.layout import METRICS
from statemix.runs.metrics import read_reports
from statemix.train.loop import read_result
from statemix.train.state import EpochReport
from statemix.train.trained import load_trained

__all__ = ["describe", "print_inspection"]

_ROWS = 10  # of the training curve, about


def print_inspection(directory: Path) -> None:
    """Print config, training curve, test accuracy and spectra."""
    config, task, model = load_trained(directory)
    warn_of_changes(config, directory)
    console = make_console()
    facts = Table(show_header=False, box=None)
    for name, value in json.loads(config.to_json()).items():
        facts.add_row(name, str(value))
    facts.add_row("parameters", f"{sum(p.numel() for p in model.parameters()):,}")
    console.print(facts)
    console.print(_curve(directory))
    result = read_result(config, directory)
    if result is not None:
        say(f"test {result.test}")
    length = config.length or task.length
    for number, values in enumerate(collect_eigenvalues(model, task, length), 1):
        say(describe(number, values))


def _curve(directory: Path) -> Table:
    """Loss and accuracy after every tenth of the epochs."""
    epochs, damaged = read_reports(EpochReport, directory / METRICS)
    if damaged:
        warn(f"{damaged} lines of {directory / METRICS} are damaged and were skipped.")
    table = Table("epoch", "loss", "training", "validation", title="training", title_justify="left")
    for epoch in epochs[:: max(1, len(epochs) // _ROWS)]:
        numbers = (f"{x:.3g}" if abs(x) > 1e6 else f"{x:.3f}" for x in _numbers(epoch))
        table.add_row(str(epoch.epoch + 1), *numbers)
    return table


def _numbers(epoch: EpochReport) -> tuple[float, float, float]:
    return epoch.loss, epoch.train, epoch.validation


def describe(number: int, values: Tensor) -> str:
    """One sentence about the eigenvalues of a layer."""
    spectrum = Spectrum(values)
    return (
        f"layer {number}: |λ| up to {spectrum.radii.max().item():.3f}, "
        f"real part from {values.real.min().item():.3f}, "
        f"{spectrum.negative:.1%} negative, {spectrum.complex:.1%} complex"
    )
