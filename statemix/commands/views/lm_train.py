"""What `statemix lm train` prints: a progress bar, then held-out perplexity."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch.distributed.checkpoint.api import CheckpointException

from statemix.commands.views.console import make_console, make_progress, say
from statemix.commands.views.lm_ngram import add_ngram, make_table
from statemix.config.lm import Execution, LMRunConfig
from statemix.data import TokenData
from statemix.lm.budget import steps_in
from statemix.lm.ngram import NGramResult, measure_rivals
from statemix.lm.ranks import Ranks, ranks_of
from statemix.lm.result import LMResult, StepReport, ValidationReport, read_config
from statemix.lm.step import LMRun
from statemix.lm.trainer import train_lm
from statemix.runs.layout import CONFIG, FINAL
from statemix.runs.trackers import Tracker, open_tracker

__all__ = ["train_with_progress"]

_SMOOTH = 0.95  # weight of the past in the loss that the bar shows


def train_with_progress(
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    out: Path | None,
    *,
    minutes: float | None,
    threads: int,
    tracker: str,
    compare_ngram: bool,
) -> LMResult:
    """Train with a progress bar, in this process or on torchrun's ranks, and print the result."""
    torch.set_num_threads(threads)
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"`minutes` must be above zero and finite, got {minutes}.")
    limit = "" if minutes is None else f"-{minutes:g}min"
    name = f"{data.directory.name}-{config.id}{limit}"
    directory = Path("runs") / "lm" / name if out is None else out
    with ranks_of(execution) as ranks:
        try:
            if minutes is not None:
                steps = _steps(minutes, config, execution, data, ranks, directory)
                config = replace(config, steps=steps)
            result = _observed(config, execution, data, directory, ranks, tracker)
        except (RuntimeError, CheckpointException) as error:
            if ranks.size == 1:
                raise
            reason = str(error).strip().splitlines()[0]
            raise SystemExit(
                f"statemix: Rank {ranks.rank} stopped waiting for another rank ({reason}). "
                "Run the same command again to resume."
            ) from error
        is_first = ranks.rank == 0
    if is_first:
        _print_result(config, result, measure_rivals(data) if compare_ngram else [], directory)
    return result


def _steps(
    minutes: float,
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    ranks: Ranks,
    directory: Path,
) -> int:
    """The steps of the run in `directory` if there is one, else as many as fit into `minutes`."""
    if not (directory / CONFIG).is_file():
        return steps_in(minutes, config, execution, data, ranks)
    steps = read_config(directory).steps
    if ranks.rank == 0:
        say(f"{directory} already holds a run of {steps} steps; --minutes is ignored", stderr=True)
    return steps


def _observed(
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    directory: Path,
    ranks: Ranks,
    tracker: str,
) -> LMResult:
    """Train; the first rank shows a progress bar and sends metrics to the tracker."""
    if ranks.rank != 0:
        return train_lm(config, execution, data, directory, ranks)
    fields = TextColumn("{task.fields[shown]}", markup=False)
    with _created(directory):
        sink = open_tracker(tracker, config, directory)
        with make_progress(BarColumn(), fields, TimeRemainingColumn()) as progress:
            task = progress.add_task("training", total=config.steps, shown="")
            bar = _Bar(progress, task, sink)
            result = train_lm(config, execution, data, directory, ranks, bar)
        sink.finish()
    return result


@contextmanager
def _created(directory: Path) -> Iterator[None]:
    """Create `directory`; remove it again if an error leaves it empty."""
    is_new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if is_new and not any(directory.iterdir()):
            directory.rmdir()
        raise


class _Bar:
    """Shows the reports of a run in a progress bar, and sends them to a tracker."""

    def __init__(self, progress: Progress, task: TaskID, sink: Tracker) -> None:
        self.progress = progress
        self.task = task
        self.sink = sink
        self.loss = 0.0
        self.validation = ""

    def __call__(self, run: LMRun, report: StepReport | ValidationReport) -> None:
        if isinstance(report, ValidationReport):
            quality = f"{report.perplexity:.2f} perplexity, {report.bits_per_byte:.3f} bits/byte"
            self.validation = f"  validation {quality}"
            values = {"perplexity": report.perplexity, "bits_per_byte": report.bits_per_byte}
            self.sink.log(report.step, values)
            return
        past = self.loss or report.loss
        self.loss = _SMOOTH * past + (1 - _SMOOTH) * report.loss
        speed = (
            f"{report.tokens_per_second:,.0f} tokens/s  {100 * report.utilisation:.0f} % of peak"
        )
        shown = f"loss {self.loss:.3f}  {speed}{self.validation}"
        self.progress.update(self.task, completed=report.step, shown=shown)
        rates = {"lr": report.lr, "tokens_per_second": report.tokens_per_second}
        self.sink.log(report.step, {"loss": report.loss, **rates})


def _print_result(
    config: LMRunConfig, result: LMResult, rivals: list[NGramResult], directory: Path
) -> None:
    """Print the validation, next to that of n-gram models, and the path of the model."""
    table = make_table(f"{result.tokens:,} tokens in {result.seconds:.0f} s")
    table.add_row(
        f"{config.model.title}, {result.parameters:,} parameters",
        f"{result.perplexity:.3f}",
        f"{result.bits_per_byte:.4f}",
    )
    for rival in rivals:
        add_ngram(table, rival)
    make_console().print(table)
    speed = f"{result.tokens / max(result.seconds, 1e-9):,.0f} tokens/s"
    say(f"{result.steps} steps, {speed}; the model is in {directory / FINAL}")
