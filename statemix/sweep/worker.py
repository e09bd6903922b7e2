"""One run in a directory of its own, which no other process may enter meanwhile."""

import json
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from statemix.runs.checkpoint import DamagedCheckpoint
from statemix.runs.layout import CHECKPOINT
from statemix.runs.lock import Busy, entered
from statemix.runs.plugins import load_file
from statemix.tasks import Task
from statemix.train import EpochReport, RunConfig, train
from statemix.train.sources import check_sources
from statemix.train.trained import load_trained

Measure = Callable[[RunConfig, Task, nn.Module], dict[str, Any]]


def find_measure(files: Iterable[Path]) -> Measure | None:
    """The `measure` of the first file that has one."""
    return next(
        (module.measure for module in map(load_file, files) if hasattr(module, "measure")), None
    )


def check_measured(found: Any) -> Any:
    """What an experiment's `measure` returns is kept in the ledger, so JSON must hold it."""
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`measure` must return numbers, strings, lists and dictionaries of them: {error}. Convert with .item()."
        ) from error
    return found


def perform(
    config: RunConfig,
    runs: Path,
    report: Callable[[EpochReport], None],
    measure: Measure | None = None,
) -> tuple[dict[str, Any] | None, str | None]:
    """Train, and measure what the experiment wants measured; return the result, or the reason why there is none.

    A run that another process is at has neither: it is left to that process.
    """
    directory = runs / config.id
    try:
        with entered(directory):
            check_sources(config, directory, resume=True)
            try:
                result = train(config, directory, observer=lambda _, epoch: report(epoch))
            except DamagedCheckpoint:
                (directory / CHECKPOINT).rename(directory / f"{CHECKPOINT}.damaged")
                result = train(config, directory, observer=lambda _, epoch: report(epoch))
            measured = (
                {}
                if measure is None
                else {"measured": check_measured(measure(*load_trained(directory)))}
            )
            return asdict(result) | measured, None
    except Busy:
        return None, None
    except Exception as error:  # whatever ends a run is that run's own affair, and is written down
        place = traceback.extract_tb(error.__traceback__)[-1]
        return None, f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
