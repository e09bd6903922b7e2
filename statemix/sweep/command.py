"""What `statemix sweep` does."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from statemix.sweep.ledger import Ledger
from statemix.sweep.plan import Where, load_cells, share
from statemix.sweep.run import sweep
from statemix.sweep.select import choose
from statemix.train import RunConfig


@dataclass(frozen=True)
class Selection:
    """Which cells of an experiment to run: at which scale and places, which share of them, and how many at most."""

    scale: str = "laptop"
    job: int = 0
    jobs: int = 1
    limit: int | None = None
    where: Where = field(default_factory=Where)


def briefly(config: RunConfig) -> str:
    """What tells a cell from its neighbours, in a line."""
    model = config.model
    options = " ".join(f"{key}={value}" for key, value in model.options.items())
    training = (
        f"{config.train_examples:,} sequences, {config.optimiser} {config.lr:g}, seed {config.seed}"
    )
    return f"{config.task}  {model.mixer} {options}, width {model.width}, layers {model.layers}  {training}"


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
    """Run the missing cells, then show what the experiment's cells have come to."""
    configs = share(
        load_cells(experiment, selection.scale, selection.where), selection.job, selection.jobs
    )
    book = Ledger(ledger)
    done = book.done()
    if selection.limit is not None:
        missing = [config for config in configs if config.id not in done][: selection.limit]
        configs = [config for config in configs if config.id in done] + missing
    if dry_run:
        for config in configs:
            print(f"{config.id}  {'done' if config.id in done else 'to run'}  {briefly(config)}")
        lacking = sum(config.id not in done for config in configs)
        print(f"{lacking} of {len(configs)} cells are missing in {ledger}")
        return
    summary = sweep(
        configs, book, runs, engine=engine, workers=workers, files=(experiment.resolve(),)
    )
    console = Console()
    table = Table(
        "task", "mixer", "options", "examples", "lr", "seeds", "test mean", "± sd", "best"
    )
    ids = {config.id for config in configs}
    for choice in choose(entry for entry in book.read()[0] if entry.id in ids):
        model = choice.config["model"]
        options = " ".join(f"{key}={value}" for key, value in model["options"].items())
        deviation = f"{choice.deviation:.3f}" if choice.seeds > 1 else ""
        numbers = (f"{choice.mean:.3f}", deviation, f"{choice.best:.3f}")
        table.add_row(
            choice.config["task"],
            model["mixer"],
            options,
            str(choice.config["train_examples"]),
            f"{choice.lr:g}",
            str(choice.seeds),
            *numbers,
        )
    console.print(table)
    counts = f"{summary.done} runs done, {summary.failed} failed, {summary.already_done} were in the ledger"
    counts += f", {summary.elsewhere} done by another process" if summary.elsewhere else ""
    console.print(f"{counts}, {summary.seconds:.0f} s; ledger: {ledger}", markup=False)
    if summary.missing:
        raise SystemExit(1)
