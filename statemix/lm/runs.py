"""What `statemix lm prepare`, `train` and `ngram` show: progress bars, tables, and where everything was put."""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

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
from torch.distributed.checkpoint.api import CheckpointException

from statemix.config.lm import Execution, LMRunConfig
from statemix.data import TokenData, open_data
from statemix.data.prepare import PrepareConfig, prepare
from statemix.data.sources import COLUMNS, HUB, LINES, TEXT, open_source
from statemix.data.tokens import Meta
from statemix.lm.ngram import LossyTokenizer, NGramResult, measure_ngram
from statemix.lm.ranks import Ranks, ranks_of
from statemix.lm.reports import LMResult, StepReport, ValidationReport, read_config
from statemix.lm.trainer import LMRun, start, train_lm, train_step
from statemix.runs.layout import CONFIG, FINAL
from statemix.runs.trackers import Tracker, open_tracker

WARM_UP, TIMED, SPARE = (
    2,
    5,
    0.9,
)  # steps before the timing, in it, and the share of the minutes that steps may take
SMOOTH = 0.95  # of the loss and the speed that the bar shows


def prepare_with_progress(source: str, field: str, config: PrepareConfig, out: Path | None) -> Meta:
    """Prepare a text with a bar, and print what it became."""
    place = Path("data") / name_of(source) if out is None else out
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed} documents"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task(source, total=None)
        meta = prepare(
            open_source(source, field),
            config,
            place,
            lambda stage, done, total: progress.update(
                bar, description=stage, completed=done, total=total
            ),
        )
    table = Table(
        "",
        "documents",
        "bytes",
        "tokens",
        "bytes a token",
        "shards",
        title=f"{source}, {meta.vocab} tokens",
        title_justify="left",
    )
    for name, split in meta.splits.items():
        numbers = (
            f"{split.documents:,}",
            f"{split.bytes:,}",
            f"{split.predictions:,}",
            f"{split.bytes / split.predictions:.2f}",
        )
        table.add_row(name, *numbers, str(len(split.shards)))
    Console().print(table)
    if meta.empty:
        Console().print(f"{meta.empty:,} empty documents left out")
    Console().print(f"written to {place}; train with: statemix lm train {place}", markup=False)
    return meta


def name_of(source: str) -> str:
    """What a prepared text is called: as its file without its kind, its directory, or the last part of its name on the hub."""
    if source.startswith(HUB):
        return Path(source.rpartition(":")[2]).name
    path = Path(source).resolve()
    kind = next(
        (kind for kind in (*LINES, *COLUMNS, *TEXT) if path.name.lower().endswith(kind)), ""
    )
    return (
        path.name if path.is_dir() or path.name == kind else path.name[: len(path.name) - len(kind)]
    )


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
    """Train with a bar, on this process or with the ranks that torchrun started, and print the result."""
    torch.set_num_threads(threads)
    if minutes is not None and not 0 < minutes < math.inf:
        raise ValueError(f"`minutes` must be above zero and finite, got {minutes}.")
    limit = "" if minutes is None else f"-{minutes:g}min"
    directory = (
        Path("runs") / "lm" / f"{data.directory.name}-{config.id}{limit}" if out is None else out
    )
    with ranks_of(execution) as ranks:
        try:
            if minutes is not None:
                config = replace(
                    config, steps=steps_in(minutes, config, execution, data, ranks, directory)
                )
            result = observed(config, execution, data, directory, ranks, tracker)
        except (RuntimeError, CheckpointException) as error:
            if ranks.size == 1:
                raise
            reason = str(error).strip().splitlines()[0]
            raise SystemExit(
                f"statemix: Rank {ranks.rank} stopped waiting for another ({reason}); run the same command again to go on."
            ) from error
        leader = ranks.rank == 0
    if leader:
        print_result(config, result, measure_rivals(data) if compare_ngram else [], directory)
    return result


def measure_rivals(data: TokenData) -> list[NGramResult]:
    """N-grams of tokens and of bytes; of tokens alone where bytes cannot be had from them."""
    rivals = [measure_ngram(data)]
    try:
        rivals.append(measure_ngram(data, of_bytes=True))
    except LossyTokenizer as error:
        Console(stderr=True).print(f"No n-grams of bytes: {error}", markup=False)
    return rivals


def steps_in(
    minutes: float,
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    ranks: Ranks,
    directory: Path,
) -> int:
    """How many steps fit into the minutes: those of the run that was begun in `directory`, or as many as the first few promise."""
    if (directory / CONFIG).is_file():
        steps = read_config(directory).steps
        if ranks.rank == 0:
            Console(stderr=True).print(
                f"{directory} holds a run already: its {steps} steps stay, whatever the --minutes",
                soft_wrap=True,
            )
        return steps
    run = start(config, execution, data, ranks)
    for _ in range(WARM_UP):
        train_step(run)
    began = time.perf_counter()
    for _ in range(TIMED):
        train_step(run)
    seconds = ranks.total((time.perf_counter() - began) / TIMED)[0] / ranks.size
    return max(1, int(SPARE * 60 * minutes / seconds))


def observed(
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    directory: Path,
    ranks: Ranks,
    tracker: str,
) -> LMResult:
    """Train; the first rank shows a bar and sends metrics to the tracker."""
    if ranks.rank != 0:
        return train_lm(config, execution, data, directory, ranks)
    with made(directory):
        return shown(config, execution, data, directory, ranks, tracker)


@contextmanager
def made(directory: Path) -> Iterator[None]:
    """`directory` exists; it goes again if an error leaves it empty."""
    new = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        if new and not any(directory.iterdir()):
            directory.rmdir()
        raise


def shown(
    config: LMRunConfig,
    execution: Execution,
    data: TokenData,
    directory: Path,
    ranks: Ranks,
    tracker: str,
) -> LMResult:
    """Train with a bar, and a tracker."""
    sink = open_tracker(tracker, config, directory)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[shown]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar = Bar(progress, progress.add_task("training", total=config.steps, shown=""), sink)
        result = train_lm(config, execution, data, directory, ranks, bar)
    sink.finish()
    return result


class Bar:
    """Shows the reports of a run, and sends them on."""

    def __init__(self, progress: Progress, task: TaskID, sink: Tracker) -> None:
        self.progress, self.task, self.sink = progress, task, sink
        self.loss, self.bits = 0.0, ""

    def __call__(self, run: LMRun, report: StepReport | ValidationReport) -> None:
        if isinstance(report, ValidationReport):
            self.bits = f"  validation {report.perplexity:.2f} perplexity, {report.bits_per_byte:.3f} bits a byte"
            self.sink.log(
                report.step,
                {"perplexity": report.perplexity, "bits_per_byte": report.bits_per_byte},
            )
            return
        self.loss = (
            report.loss if not self.loss else SMOOTH * self.loss + (1 - SMOOTH) * report.loss
        )
        shown = f"loss {self.loss:.3f}  {report.tokens_per_second:,.0f} tokens/s  {100 * report.utilisation:.0f} % of peak{self.bits}"
        self.progress.update(self.task, completed=report.step, shown=shown)
        self.sink.log(
            report.step,
            {"loss": report.loss, "lr": report.lr, "tokens_per_second": report.tokens_per_second},
        )


def print_result(
    config: LMRunConfig, result: LMResult, rivals: list[NGramResult], directory: Path
) -> None:
    """Validation beside the n-grams', and where the model is."""
    table = Table(
        "held-out text",
        "perplexity",
        "bits per byte",
        title=f"{result.tokens:,} tokens in {result.seconds:.0f} s",
        title_justify="left",
    )
    table.add_row(
        f"{config.model.mixer}, {result.parameters:,} parameters",
        f"{result.perplexity:.3f}",
        f"{result.bits_per_byte:.4f}",
    )
    for rival in rivals:
        table.add_row(ngram_name(rival), f"{rival.perplexity:.3f}", f"{rival.bits_per_byte:.4f}")
    console = Console()
    console.print(table)
    console.print(
        f"{result.steps} steps, {result.tokens / max(result.seconds, 1e-9):,.0f} tokens/s; the model is in {directory / FINAL}",
        markup=False,
    )


def print_ngram(directory: Path, order: int, *, of_bytes: bool) -> None:
    """What an n-gram model reaches."""
    result = measure_ngram(open_data(directory), order, of_bytes=of_bytes)
    table = Table("held-out text", "perplexity", "bits per byte")
    table.add_row(ngram_name(result), f"{result.perplexity:.3f}", f"{result.bits_per_byte:.4f}")
    Console().print(table)


def ngram_name(result: NGramResult) -> str:
    return f"Kneser–Ney of order {result.order} over {'bytes' if result.of_bytes else 'tokens'}"
