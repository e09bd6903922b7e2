"""What `statemix train` and `statemix eval` do: a progress bar, a table, and where everything was put."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from torch import nn

from statemix.config.task import RunConfig, config_from_dict
from statemix.layers import MIXERS
from statemix.runs.checkpoint import load_checkpoint, with_prefix
from statemix.runs.files import write_atomically
from statemix.runs.layout import CHECKPOINT, CONFIG, FILES, RESULT
from statemix.runs.lock import entered
from statemix.runs.plugins import hash_sources
from statemix.runs.trackers import open_tracker
from statemix.tasks import Task, find_task
from statemix.tasks.task import find_maker
from statemix.train.loop import read_result, train
from statemix.train.metrics import measure_accuracy
from statemix.train.state import EpochReport, Run, RunResult, make_model


def run_training(
    config: RunConfig, runs: Path, *, threads: int, resume: bool, tracker: str
) -> RunResult:
    """Train with a progress bar, and print the result; a run that ended earlier is only printed, and said to be so."""
    torch.set_num_threads(threads)
    directory = runs / config.id
    task = find_task(config.task, config.task_options)
    make_model(
        config, task, config.length or task.length, attempt=0
    )  # complain before anything is written
    with entered(directory):
        check_sources(config, directory, resume=resume)
        ended = resume and read_result(config, directory) is not None
        result = train_with_bar(
            config, directory, resume=resume, tracker="none" if ended else tracker
        )
    if ended:
        Console().print(
            "This run ended earlier, nothing was trained now. Add --no-resume to train it again.",
            markup=False,
        )
    print_result(config, result, directory)
    return result


def train_with_bar(config: RunConfig, directory: Path, *, resume: bool, tracker: str) -> RunResult:
    """`train` with a progress bar, which a tracker hears of too."""
    sink = open_tracker(tracker, config, directory)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[accuracy]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(config.task, total=None, accuracy="")

        def observe(run: Run, report: EpochReport) -> None:
            show(progress, bar, run, report)
            sink.log(
                report.step,
                {name: value for name, value in asdict(report).items() if isinstance(value, float)},
            )

        result = train(config, directory, resume=resume, observer=observe)
    sink.finish()
    return result


def sources_of(config: RunConfig) -> dict[str, str]:
    """Users' files that define the mixer and the task of a run, and a hash of each."""
    mixers = [MIXERS[config.model.mixer]] if config.model.mixer in MIXERS else []
    return hash_sources([*mixers, find_maker(config.task)])


def changed_sources(config: RunConfig, directory: Path) -> list[str]:
    """Which of these files are not what they were when the run in `directory` began."""
    path = directory / FILES
    before, now = json.loads(path.read_text()) if path.exists() else {}, sources_of(config)
    return sorted(name for name in before if before[name] != now.get(name))


def check_sources(config: RunConfig, directory: Path, *, resume: bool) -> None:
    """Users' files that define the mixer and the task are what they were when the run began; what they are is kept for the next time."""
    if not resume or not any((directory / name).exists() for name in (CHECKPOINT, RESULT)):
        sources = sources_of(config)
        if sources:
            write_atomically(directory / FILES, json.dumps(sources).encode())
        return
    changed = changed_sources(config, directory)
    if changed:
        raise ValueError(
            f"{', '.join(changed)} changed since the run {directory} began. Train it again with --no-resume, "
            "or with another directory as --runs to keep both."
        )


def warn_of_changes(config: RunConfig, directory: Path) -> None:
    """Say so if the weights of a run meet code that did not train them."""
    changed = changed_sources(config, directory)
    if changed:
        Console(stderr=True).print(
            f"{', '.join(changed)} changed since the run {directory} was trained.",
            markup=False,
            style="yellow",
        )


def show(progress: Progress, bar: TaskID, run: Run, report: EpochReport) -> None:
    """The bar after an epoch: it ends at the last step, or earlier if the task is solved."""
    accuracy = (
        f"loss {report.loss:.3f}  training {report.train:.3f}  validation {report.validation:.3f}"
    )
    length = f" length {report.length}" if run.config.curriculum else ""
    progress.update(
        bar,
        total=run.config.total_steps,
        completed=report.step,
        accuracy=accuracy,
        description=f"{run.config.task}{length}",
    )


def print_result(config: RunConfig, result: RunResult, directory: Path) -> None:
    """Accuracies at the chosen epoch, and where to find the rest."""
    table = Table(
        "",
        "tokens",
        "classes",
        "sequences",
        title=f"{config.task}, {config.model.mixer} {dict(config.model.options)}",
        title_justify="left",
    )
    for name, accuracy in (("validation", result.validation), ("test", result.test)):
        table.add_row(name, *(f"{accuracy[key]:.4f}" for key in ("token", "macro", "sequence")))
    console = Console()
    console.print(table)
    restarts = f", {result.restarts} restarts" if result.restarts else ""
    course = f"{result.epochs} epochs{restarts}, {result.seconds:.0f} s; chosen: epoch {result.best_epoch + 1}"
    console.print(f"{result.parameters:,} parameters, {course}")
    if result.held:
        console.print(f"holds: sequences of {config.hold} tokens end right too")
    if result.held is False:
        console.print(
            f"No attempt was right at the end of {config.hold} tokens too, as --hold asks. Try more --epochs, or larger blocks."
        )
    if result.shared_inputs:
        console.print(
            f"{result.shared_inputs} training sequences are also in validation or test: the task has too few sequences of this length."
        )
    console.print(f"kept in {directory}", markup=False)


def load_trained(directory: Path) -> tuple[RunConfig, Task, nn.Module]:
    """The chosen weights of a run."""
    for name in (CONFIG, CHECKPOINT):
        if not (directory / name).is_file():
            raise FileNotFoundError(f"{directory} is not the directory of a run: it has no {name}.")
    try:
        config = config_from_dict(json.loads((directory / CONFIG).read_text()))
    except json.JSONDecodeError as error:
        raise ValueError(f"{directory / CONFIG} is damaged: {error}.") from error
    if config.model.mixer not in MIXERS:
        raise ValueError(
            f"{directory} was trained with the mixer {config.model.mixer!r}. Give the file that registers it with --files."
        )
    try:
        task = find_task(config.task, config.task_options)
    except ValueError as error:
        raise ValueError(
            f"{error} If {config.task!r} is a task of your own, give the file that registers it with --files."
        ) from error
    tensors, _ = load_checkpoint(directory / CHECKPOINT)
    length = (
        tensors["best.positions"].shape[0]
        if "best.positions" in tensors
        else config.length or task.length
    )
    model = make_model(config, task, length, attempt=0)
    try:
        model.load_state_dict(with_prefix(tensors, "best."))
    except RuntimeError as error:
        raise ValueError(
            f"The checkpoint in {directory} does not fit its config: {str(error).splitlines()[-1].strip()}"
        ) from error
    return config, task, model.eval()


def print_evaluation(
    directory: Path, lengths: tuple[int, ...], examples: int, seed: int, out: Path | None
) -> None:
    """Accuracy at each length that fits the task, over all positions and at the last."""
    config, task, model = load_trained(directory)
    warn_of_changes(config, directory)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    table = Table(
        "length",
        "tokens",
        "sequences",
        "last position",
        title=f"{config.task}, {config.model.mixer}",
        title_justify="left",
    )
    lines = []
    for length in fitting_lengths(task, getattr(model, "length", None), lengths):
        fresh = task.examples(examples, length, np.random.default_rng([seed, length]))
        accuracy = measure_accuracy(model, fresh, task.classes)
        table.add_row(
            str(length),
            f"{accuracy.token:.4f}",
            f"{accuracy.sequence:.4f}",
            f"{accuracy.by_position[-1]:.4f}",
        )
        by_position = [None if math.isnan(share) else share for share in accuracy.by_position]
        lines.append(
            {"run": config.id, "length": length, **asdict(accuracy), "by_position": by_position}
        )
    Console().print(table)
    if out is not None:
        with out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def fitting_lengths(task: Task, longest: int | None, lengths: tuple[int, ...]) -> list[int]:
    """Those of `lengths` that fit the task and the model's `longest` positions; if none does, neighbours that do, or `longest`."""

    def fits(length: int) -> bool:
        return task.fits(length) and (longest is None or length <= longest)

    reason = f"the task {task.name!r} has lengths {task.lengths}" + (
        "" if longest is None else f", the model {longest} positions"
    )
    steps = (0,) if any(map(fits, lengths)) else (1, -1)
    last_resort = (
        None if any(fits(length + step) for length in lengths for step in steps) else longest
    )
    chosen: list[int] = []
    for length in lengths:
        near = next((length + step for step in steps if fits(length + step)), last_resort)
        if near != length:
            instead = "left out" if near is None else f"replaced by {near}"
            Console(stderr=True).print(f"length {length} {instead}: {reason}", markup=False)
        if near is not None and near not in chosen:
            chosen.append(near)
    return chosen
