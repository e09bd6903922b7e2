"""What `statemix sweep` prints: a live table while cells run, then the results."""

from rich.table import Table

from statemix.commands.views.board import Board, options_of, task_of
from statemix.commands.views.console import make_console, say
from statemix.config.lm import LMRunConfig
from statemix.sweep import Choice, Ledger, choose, sweep
from statemix.sweep.kinds import Config
from statemix.sweep.worker import Workspace

__all__ = ["print_plan", "run_sweep", "select"]


def select(configs: list[Config], ledger: Ledger, limit: int | None) -> list[Config]:
    """The cells with a result, and the first `limit` of those without."""
    if limit is None:
        return configs
    done = ledger.done()
    missing = [config for config in configs if config.id not in done]
    return [config for config in configs if config.id in done] + missing[:limit]


def print_plan(configs: list[Config], ledger: Ledger) -> None:
    """Every cell in one line, and whether it still has to run."""
    done = ledger.done()
    for config in configs:
        print(f"{config.id}  {'done' if config.id in done else 'to run'}  {_describe(config)}")
    missing = sum(config.id not in done for config in configs)
    print(f"{missing} of {len(configs)} cells are missing in {ledger.path}")


def _describe(config: Config) -> str:
    """What distinguishes a cell from its neighbours, in one line."""
    model = config.model
    size = (
        f"{config.steps:,} steps"
        if isinstance(config, LMRunConfig)
        else f"{config.train_examples:,} sequences"
    )
    return (
        f"{task_of(config)}  {model.mixer} {options_of(model.options)}, "
        f"width {model.width}, layers {model.layers}  "
        f"{size}, {config.optimiser} {config.lr:g}, seed {config.seed}"
    )


def run_sweep(configs: list[Config], workspace: Workspace, engine: str, workers: int) -> None:
    """Run the missing cells, then print the results of all cells of the experiment."""
    done = workspace.ledger.done()
    with Board([config for config in configs if config.id not in done]) as board:
        summary = sweep(
            configs,
            workspace.ledger,
            workspace.runs,
            data=workspace.data,
            files=workspace.files,
            engine=engine,
            workers=workers,
            observe=board.observe,
        )
    _print_results(configs, workspace.ledger)
    counts = f"{summary.done} runs done, {summary.failed} failed, "
    counts += f"{summary.already_done} were in the ledger"
    counts += f", {summary.elsewhere} done by another process" if summary.elsewhere else ""
    say(f"{counts}, {summary.seconds:.0f} s; ledger: {workspace.ledger.path}")
    if summary.missing:
        raise SystemExit(1)


def _print_results(configs: list[Config], ledger: Ledger) -> None:
    """Test accuracy, or held-out perplexity, over seeds at the selected learning rate."""
    ids = {config.id for config in configs}
    choices = choose(entry for entry in ledger.read()[0] if entry.id in ids)
    tasks = [choice for choice in choices if "task" in choice.config]
    texts = [choice for choice in choices if "task" not in choice.config]
    if tasks or not texts:
        _print_table("test mean", "examples", tasks, "task", "train_examples")
    if texts:
        _print_table("perplexity", "steps", texts, "data", "steps")


def _print_table(number: str, size: str, choices: list[Choice], what: str, count: str) -> None:
    table = Table("task", "mixer", "options", size, "lr", "seeds", number, "± sd", "best")
    for choice in choices:
        model = choice.config["model"]
        table.add_row(
            choice.config[what],
            model["mixer"],
            options_of(model["options"]),
            str(choice.config[count]),
            f"{choice.lr:g}",
            str(choice.seeds),
            f"{choice.mean:.3f}",
            f"{choice.deviation:.3f}" if choice.seeds > 1 else "",
            f"{choice.best:.3f}",
        )
    make_console().print(table)
