"""Gather the runs of each experiment's cells from the ledger.

A place is a row and a column of an experiment. Its runs are grouped by recipe. A recipe is
represented by the test accuracy of the run with the best validation accuracy, over all learning
rates, with the mean and deviation over all seeds at that rate. A place is represented by the
recipe whose run has the best validation accuracy. Runs of the paper's size (`--scale paper`) form
separate recipes, and take precedence over smaller ones.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statemix.config.task import RunConfig
from statemix.paper import PaperValue
from statemix.sweep import Cell, Choice, Entry, Ledger, choose, load_scales
from statemix.sweep.select import setting_of

__all__ = ["Measured", "Neighbour", "Place", "gather", "neighbours", "result_of"]

_FULL_SIZE = "the paper's size"


@dataclass(frozen=True)
class Measured:
    """The runs of one recipe at one place, at the chosen learning rate."""

    recipe: str
    choice: Choice
    entries: tuple[Entry, ...]

    @property
    def chosen(self) -> Entry:
        """The run with the best validation accuracy."""
        return max(self.entries, key=lambda entry: result_of(entry)["validation"]["token"])

    @property
    def accuracy(self) -> float:
        return result_of(self.chosen)["test"]["token"]


@dataclass(frozen=True)
class Place:
    """A cell of a table or a point of a figure, with its planned and measured runs."""

    experiment: str
    row: str
    column: str
    planned: int
    measured: tuple[Measured, ...]

    @property
    def best(self) -> Measured | None:
        """The recipe that validates best, among those of the paper's size if there are any."""
        full = [m for m in self.measured if m.recipe.endswith(_FULL_SIZE)]
        return max(
            full or self.measured,
            key=lambda m: result_of(m.chosen)["validation"]["token"],
            default=None,
        )


@dataclass(frozen=True)
class Neighbour:
    """A number of the paper, with our accuracy, and mean and deviation over the same recipe."""

    paper: PaperValue
    accuracy: float | None = None
    mean: float = 0.0
    deviation: float = 0.0
    runs: int = 0
    recipe: str = ""

    @property
    def difference(self) -> float | None:
        return None if self.accuracy is None else self.accuracy - self.paper.accuracy

    @property
    def full_size(self) -> bool:
        """True if our runs have the paper's size."""
        return self.recipe.endswith(_FULL_SIZE)


def result_of(entry: Entry) -> dict[str, Any]:
    assert entry.result is not None
    return entry.result


def gather(experiments: Iterable[Path], ledger: Ledger) -> tuple[list[Place], list[str]]:
    """Return all places of all experiments, and complaints about damaged lines of the ledger."""
    entries, complaints = ledger.read()
    done = {entry.id: entry for entry in entries if entry.status == "done"}
    places = []
    for path in experiments:
        by_place: dict[tuple[str, str], list[Cell]] = defaultdict(list)
        for cell in _cells_of(path, done):
            by_place[cell.row, cell.column].append(cell)
        places += [
            _make_place(path.stem, row, column, cells, done)
            for (row, column), cells in by_place.items()
        ]
    return places, complaints


def _cells_of(path: Path, done: dict[str, Entry]) -> Iterable[Cell]:
    """All cells at laptop scale, and the finished ones at the paper's, without duplicates."""
    scales = {scale: _task_cells(cells) for scale, cells in load_scales(path).items()}
    configs = [entry.config for entry in done.values() if "task" in entry.config]
    run = {(config["task"], config["model"]["width"]) for config in configs}
    # Hashing thousands of ids is slow, so first discard cells that cannot have been run.
    likely = [
        cell for cell, config in scales.get("paper", []) if (config.task, config.model.width) in run
    ]
    full = [
        replace(cell, recipe=f"{cell.recipe}, {_FULL_SIZE}")
        for cell in likely
        if cell.config.id in done
    ]
    known = {cell.config.id for cell in full}
    smaller = [cell for cell, config in scales["laptop"] if config.id not in known]
    return {(cell.row, cell.column, cell.config.id): cell for cell in [*full, *smaller]}.values()


def _task_cells(cells: list[Cell]) -> list[tuple[Cell, RunConfig]]:
    """The cells that train a task, with their configs."""
    return [(cell, cell.config) for cell in cells if isinstance(cell.config, RunConfig)]


def _make_place(
    experiment: str, row: str, column: str, cells: list[Cell], done: dict[str, Entry]
) -> Place:
    recipes: dict[str, list[Entry]] = defaultdict(list)
    for cell in cells:
        if cell.config.id in done:
            recipes[cell.recipe].append(done[cell.config.id])
    return Place(
        experiment,
        row,
        column,
        len(cells),
        tuple(_measure(recipe, entries) for recipe, entries in recipes.items()),
    )


def _measure(recipe: str, entries: list[Entry]) -> Measured:
    """Collect the run that validates best, and the runs that differ from it only in the seed."""
    chosen = max(entries, key=lambda entry: result_of(entry)["validation"]["token"])
    setting = setting_of(chosen)
    same = [
        entry
        for entry in entries
        if entry.config["lr"] == chosen.config["lr"] and setting_of(entry) == setting
    ]
    (choice,) = choose(same)
    return Measured(recipe, choice, tuple(same))


def neighbours(places: list[Place], values: list[PaperValue]) -> list[Neighbour]:
    """Pair every number of the paper with ours."""
    found = {(place.experiment, place.row, place.column): place for place in places}
    columns = {
        table: [v.column for v in values if v.table == table and v.column != "overall"]
        for table in {v.table for v in values}
    }
    return [
        _average(
            value,
            [
                found.get((value.table, value.row, column))
                for column in dict.fromkeys(columns[value.table])
            ],
        )
        if value.column == "overall"
        else _neighbour(value, found.get((value.table, value.row, value.column)))
        for value in values
    ]


def _neighbour(value: PaperValue, place: Place | None) -> Neighbour:
    best = None if place is None else place.best
    if best is None:
        return Neighbour(value)
    return Neighbour(
        value,
        best.accuracy,
        best.choice.mean,
        best.choice.deviation,
        len(best.entries),
        best.recipe,
    )


def _average(value: PaperValue, parts: list[Place | None]) -> Neighbour:
    """Average our accuracy over all columns, if each has been measured."""
    each = [_neighbour(value, part) for part in parts]
    numbers = [one.accuracy for one in each if one.accuracy is not None]
    if len(numbers) < len(each):
        return Neighbour(value)
    mean = sum(one.mean for one in each) / len(each)
    return Neighbour(
        value,
        sum(numbers) / len(numbers),
        mean,
        runs=sum(one.runs for one in each),
        recipe="mean of the columns",
    )
