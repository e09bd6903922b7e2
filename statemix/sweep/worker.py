"""One cell in a worker process: claim it, train it, measure it."""

import json
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.lm.saved import load_model
from statemix.runs.layout import FINAL
from statemix.runs.lock import Busy, entered
from statemix.runs.plugins import load_file
from statemix.sweep.kinds import Config, Report, train_config
from statemix.sweep.ledger import Ledger
from statemix.train import RunConfig
from statemix.train.trained import load_trained

__all__ = ["BUSY", "Outcome", "Workspace", "attempted", "find_measure", "perform"]

Measure = Callable[..., dict[str, Any]]  # of (config, task, model), or (config, saved model)
Outcome = tuple[dict[str, Any] | None, str | None]  # a result, or the reason why there is none
BUSY: Outcome = (None, None)  # another process holds the cell


@dataclass(frozen=True)
class Workspace:
    """Where the cells of a sweep run: ledger, directories of runs and of texts, user files."""

    ledger: Ledger
    runs: Path
    data: Path = Path("data")
    files: tuple[Path, ...] = ()


def find_measure(files: Iterable[Path]) -> Measure | None:
    """Import all files, and return the `measure` of the first that has one."""
    modules = [load_file(path) for path in files]
    return next((module.measure for module in modules if hasattr(module, "measure")), None)


@contextmanager
def attempted(
    config: Config, workspace: Workspace, report: Report, measure: Measure | None, *, wait: bool
) -> Iterator[Outcome]:
    """Claim a cell, run it unless the ledger has its result by now, and hold the claim meanwhile.

    If another process holds the cell, wait for it or, without `wait`, return `BUSY`.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(workspace.ledger.claim(config.id, wait=wait))
        except Busy:
            yield BUSY
            return
        entry = workspace.ledger.find(config.id)
        if entry is None:
            yield perform(config, workspace, report, measure, wait=wait)
        else:
            yield entry.result, None


def perform(
    config: Config,
    workspace: Workspace,
    report: Report,
    measure: Measure | None = None,
    *,
    wait: bool = False,
) -> Outcome:
    """Train a run in its directory and measure it; return the result, or the reason for a failure.

    If another process trains in that directory, wait for it or, without `wait`, return `BUSY`.
    """
    directory = workspace.runs / config.id
    is_task = isinstance(config, RunConfig)  # a language-model run locks its directory itself
    try:
        with entered(directory, wait=wait) if is_task else nullcontext():
            result = train_config(config, directory, workspace.data, report)
            if measure is not None:
                result["measured"] = _check_measured(measure(*_load(config, directory)))
            return result, None
    except Busy:
        return BUSY
    except Exception as error:  # any error ends this run only, and its reason goes to the ledger
        line = traceback.extract_tb(error.__traceback__)[-1]
        return None, f"{type(error).__name__}: {error} ({Path(line.filename).name}:{line.lineno})"


def _load(config: Config, directory: Path) -> tuple[Any, ...]:
    """The arguments of `measure`: config, task and model, or config and saved language model."""
    if isinstance(config, RunConfig):
        return load_trained(directory)
    return config, load_model(directory / FINAL)


def _check_measured(found: Any) -> Any:
    """Return what an experiment's `measure` returned if JSON can hold it."""
    try:
        json.dumps(found)
    except (TypeError, ValueError) as error:
        raise TypeError(
            "`measure` must return numbers, strings, lists and dictionaries of them: "
            f"{error}. Convert with .item()."
        ) from error
    return found
