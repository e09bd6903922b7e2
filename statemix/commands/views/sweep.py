"""What `statemix sweep` prints: a live table while cells run, then the results."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from statemix.commands.views.board import Board
from statemix.commands.views.console import make_console, say
from statemix.sweep.ledger import Ledger
from statemix.sweep.plan import Where, load_cells, share
from statemix.sweep.run import sweep
from statemix.sweep.select import choose
from statemix.train import RunConfig

__all__ = ["Selection", "run_sweep"]


@dataclass(frozen=True)
class Selection:
    """Which cells to run: the scale, the places, this job's share of them, and a limit."""

    scale: str = "laptop"
    job: int = 0
    jobs: int = 1
    limit: int | None = None
    where: Where = field(default_factory=Where)


def run_sweep(
    experiment: Path,
    selection: Selection,
    ledger: Path,
    runs: Path,
    engine: str,
    workers: int,
    *,
    dry_run: bool = False,
) -> None:
    """Run the missing cells, then print the results of all cells of the experiment."""
    cells = load_cells(experiment, selection.scale, selection.where)
    configs = share(cells, selection.job, selection.jobs)
    book = Ledger(ledger)
    done = book.done()
    if selection.limit is not None:
        missing = [config for config in configs if config.id not in done][: selection.limit]
        configs = [config for config in configs if config.id in done] + missing
    if dry_run:
        _print_plan(configs, done, ledger)
        return
    files = (experiment.resolve(),)
    with Board([config for config in configs if config.id not in done]) as board:
        summary = sweep(
            configs,
            book,
            runs,
            engine=engine,
            workers=workers,
            files=files,
            observe=board.observe,
        )
    _print_results(configs, book)
    counts = f"{summary.done} runs done, {summary.failed} failed, "
    counts += f"{summary.already_done} were in the ledger"
    counts += f", {summary.elsewhere} done by another process" if summary.elsewhere else ""
    say(f"{counts}, {summary.seconds:.0f} s; ledger: {ledger}")
    if summary.missing:
        raise SystemExit(1)


def _print_plan(configs: list[RunConfig], done: set[str], ledger: Path) -> None:
    """Every cell in one line, and whether it still has to run."""
    for config in configs:
        print(f"{config.id}  {'done' if config.id in done else 'to run'}  {_describe(config)}")
    missing = sum(config.id not in done for config in configs)
    print(f"{missing} of {len(configs)} cells are missing in {ledger}")


def _describe(config: RunConfig) -> str:
    """What distinguishes a cell from its neighbours, in one line."""
    model = config.model
    options = " ".join(f"{key}={value}" for key, value in model.options.items())
    return (
        f"{config.task}  {model.mixer} {options}, width {model.width}, layers {model.layers}  "
        f"{config.train_examples:,} sequences, {config.optimiser} {config.lr:g}, seed {config.seed}"
    )


def _print_results(configs: list[RunConfig], ledger: Ledger) -> None:
    """Test accuracy over seeds, at the learning rate selected on validation."""
    table = Table(
        "task", "mixer", "options", "examples", "lr", "seeds", "test mean", "± sd", "best"
    )
    ids = {config.id for config in configs}
    for choice in choose(entry for entry in ledger.read()[0] if entry.id in ids):
        model = choice.config["model"]
        table.add_row(
            choice.config["task"],
            model["mixer"],
            " ".join(f"{key}={value}" for key, value in model["options"].items()),
            str(choice.config["train_examples"]),
            f"{choice.lr:g}",
            str(choice.seeds),
            f"{choice.mean:.3f}",
            f"{choice.deviation:.3f}" if choice.seeds > 1 else "",
            f"{choice.best:.3f}",
        )
    make_console().print(table)
