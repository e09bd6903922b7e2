"""What `statemix train` prints: a progress bar, then a table of accuracies."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from statemix.commands.views.console import make_console, make_progress, say, warn
from statemix.commands.views.proof import WAYS, describe
from statemix.config.task import RunConfig
from statemix.proof import Certificate
from statemix.runs.layout import CERTIFICATES
from statemix.runs.lock import entered
from statemix.runs.trackers import open_tracker
from statemix.tasks import Task, find_task
from statemix.train.loop import read_result, train
from statemix.train.sources import changed_sources, check_sources
from statemix.train.state import EpochReport, Run, RunResult, make_model

__all__ = ["print_result", "run_training", "warn_of_changes"]


def run_training(
    config: RunConfig, runs: Path, *, threads: int, resume: bool, tracker: str
) -> RunResult:
    """Train with a progress bar and print the result; a finished run is only printed."""
    torch.set_num_threads(threads)
    directory = runs / config.id
    task = find_task(config.task, config.task_options)
    # Build the model once, so that errors come before anything is written.
    make_model(config, task, config.length or task.length, attempt=0)
    with entered(directory):
        check_sources(config, directory, resume=resume)
        finished = resume and read_result(config, directory) is not None
        tracker = "none" if finished else tracker
        result = _train_with_bar(config, directory, resume=resume, tracker=tracker)
    if finished:
        say("This run is already finished; nothing was trained. Add --no-resume to train it again.")
    print_result(config, result, directory)
    if result.certificate is not None:
        _print_certificate(config, result.certificate, directory / CERTIFICATES)
    elif _can_certify(config, task):
        say(f"prove it: statemix certify {directory}")
    return result


def _print_certificate(config: RunConfig, found: dict[str, Any], directory: Path) -> None:
    """What was proved about the model, and where the proof is."""
    claims = {name: value for name, value in found.items() if name not in ("way", "total")}
    certificate = Certificate(**{**claims, "blocks": tuple(found["blocks"])})
    say(describe(config.task, certificate, tuple(found["total"])))
    say(WAYS[found["way"]])
    say(f"check it: statemix certify --verify {directory}")


def _can_certify(config: RunConfig, task: Task) -> bool:
    """True if a finished run of `config` has the form that `statemix certify` can prove."""
    model = config.model
    is_plain = model.channel_mixer == "none" and model.mixer == "bdlru"
    is_hard = config.harden or model.options.get("gate") == "hardmax"
    return is_hard and is_plain and task.automaton is not None


def _train_with_bar(config: RunConfig, directory: Path, *, resume: bool, tracker: str) -> RunResult:
    """`train` with a progress bar, reporting each epoch to the tracker."""
    sink = open_tracker(tracker, config, directory)
    accuracy = TextColumn("{task.fields[accuracy]}", markup=False)
    with make_progress(BarColumn(), accuracy, TimeRemainingColumn()) as progress:
        bar = progress.add_task(config.task, total=None, accuracy="")

        def observe(run: Run, report: EpochReport) -> None:
            _update(progress, bar, run, report)
            values = asdict(report).items()
            sink.log(report.step, {name: x for name, x in values if isinstance(x, float)})

        result = train(config, directory, resume=resume, observer=observe)
    sink.finish()
    return result


def _update(progress: Progress, bar: TaskID, run: Run, report: EpochReport) -> None:
    """Show an epoch; the bar ends at the last step, or earlier if the task is solved."""
    length = f" length {report.length}" if run.config.curriculum else ""
    progress.update(
        bar,
        total=run.config.total_steps,
        completed=report.step,
        description=f"{run.config.task}{length}",
        accuracy=f"loss {report.loss:.3f}  training {report.train:.3f}  "
        f"validation {report.validation:.3f}",
    )


def print_result(config: RunConfig, result: RunResult, directory: Path) -> None:
    """Accuracies of the selected epoch, and the directory of the run."""
    title = f"{config.task}, {config.model.mixer} {dict(config.model.options)}"
    table = Table("", "tokens", "classes", "sequences", title=title, title_justify="left")
    for name, accuracy in (("validation", result.validation), ("test", result.test)):
        table.add_row(name, *(f"{accuracy[key]:.4f}" for key in ("token", "macro", "sequence")))
    make_console().print(table)
    restarts = f", {result.restarts} restarts" if result.restarts else ""
    say(
        f"{result.parameters:,} parameters, {result.epochs} epochs{restarts}, "
        f"{result.seconds:.0f} s; best epoch: {result.best_epoch + 1}"
    )
    if result.held:
        say(f"held-out check passed: every final answer at {config.hold} tokens is right")
    if result.held is False:
        say(
            f"No attempt passed the held-out check at {config.hold} tokens (--hold). "
            "Try more --epochs, or larger blocks."
        )
    if config.certify and result.certificate is None:
        say("No attempt was proved right at every length. Try more --epochs, or larger blocks.")
    if result.shared_inputs:
        say(
            f"{result.shared_inputs} training sequences are also in validation or test: "
            "the task has too few sequences of this length."
        )
    say(f"saved in {directory}")


def warn_of_changes(config: RunConfig, directory: Path) -> None:
    """Warn if the code that defines the mixer or the task changed since the run was trained."""
    changed = changed_sources(config, directory)
    if changed:
        warn(f"{', '.join(changed)} changed since the run {directory} was trained.")
