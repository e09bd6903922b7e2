"""Gather the runs of each experiment's cells from the ledger.

A place is a row and a column of an experiment. Its runs are grouped by recipe. A recipe is
represented by the setting whose mean validation accuracy over seeds is best: the number is the mean
test accuracy over these seeds, with its standard deviation. Of settings that validate alike to two
digits, the one with more seeds is taken. Recipes that are configurations of one benchmark
(`Cell.average`) are averaged. A place is represented by the best of its recipes, by the same rule.
Runs of the paper's size (`--scale paper`) form separate recipes, and take precedence over smaller
ones.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statemix.config.task import RunConfig
from statemix.paper import SEQUENCES, WIDTH, PaperValue, bdlru, hlru
from statemix.sweep import Cell, Choice, Entry, Ledger, choose, load_scales
from statemix.sweep.select import setting_of

__all__ = ["Measured", "Neighbour", "Place", "gather", "neighbours", "result_of"]

_FULL_SIZE = "the paper's size"


@dataclass(frozen=True)
class Measured:
    """The runs of one recipe at one place, in the chosen setting: one for each seed."""

    recipe: str
    choice: Choice
    entries: tuple[Entry, ...]

    @property
    def chosen(self) -> Entry:
        """The run with the best validation accuracy."""
        return max(self.entries, key=lambda entry: result_of(entry)["validation"]["token"])

    @property
    def rank(self) -> tuple[float, int, float]:
        """What recipes and settings are compared by; the largest is chosen."""
        return _rank(self.choice)


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
        return max(full or self.measured, key=lambda measured: measured.rank, default=None)


@dataclass(frozen=True)
class Neighbour:
    """A number of the paper, with the mean of ours, and what that rests on."""

    paper: PaperValue
    mean: float | None = None
    deviation: float = 0.0
    best: float = 0.0
    runs: int = 0
    recipe: str = ""
    as_large: bool = False
    """True if our runs have the paper's width and number of training sequences."""

    @property
    def difference(self) -> float | None:
        """Our mean minus the paper's number."""
        return None if self.mean is None else self.mean - self.paper.accuracy

    @property
    def full_size(self) -> bool:
        """True if our runs are those of `--scale paper`."""
        return self.recipe.endswith(_FULL_SIZE)

    @property
    def is_average(self) -> bool:
        """True if the number is the mean over the other columns of its row."""
        return self.paper.column == "overall"


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
        _share_order_one(by_place)
        places += [
            _make_place(path.stem, row, column, cells, done)
            for (row, column), cells in by_place.items()
        ]
    return places, complaints


def _share_order_one(by_place: dict[tuple[str, str], list[Cell]]) -> None:
    """Give an H-LRU of order 1 and a BD-LRU of block size 1, the same layer, each other's cells."""
    if any(row.startswith("H-LRU") for row, _ in by_place):
        one, other = bdlru(1), hlru(1)
        for column in dict.fromkeys(c for row, c in by_place if row in (one, other)):
            both = [*by_place.get((one, column), []), *by_place.get((other, column), [])]
            by_place[one, column] = by_place[other, column] = both


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
        replace(
            cell,
            recipe=f"{cell.recipe}, {_FULL_SIZE}",
            average=f"{cell.average}, {_FULL_SIZE}" if cell.average else "",
        )
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
    recipes: dict[str, dict[str, list[Entry]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if cell.config.id in done:
            recipes[cell.average or cell.recipe][cell.recipe].append(done[cell.config.id])
    measured = [
        _average_recipes(name, [_measure(recipe, entries) for recipe, entries in parts.items()])
        for name, parts in recipes.items()
    ]
    return Place(experiment, row, column, len(cells), tuple(measured))


def _average_recipes(name: str, parts: list[Measured]) -> Measured:
    """The mean over configurations; its deviation is that of seeds within a configuration."""
    if len(parts) == 1:
        return parts[0]
    choices = [part.choice for part in parts]
    variances = [choice.deviation**2 for choice in choices if choice.seeds > 1]
    choice = replace(
        choices[0],
        seeds=min(choice.seeds for choice in choices),
        validation=statistics.mean(choice.validation for choice in choices),
        mean=statistics.mean(choice.mean for choice in choices),
        deviation=statistics.mean(variances) ** 0.5 if variances else 0.0,
        best=statistics.mean(choice.best for choice in choices),
    )
    size = f", {_FULL_SIZE}" if name.endswith(_FULL_SIZE) else ""
    label = f"{name.removesuffix(size)}, mean of {len(parts)} configurations{size}"
    return Measured(label, choice, tuple(entry for part in parts for entry in part.entries))


def _measure(recipe: str, entries: list[Entry]) -> Measured:
    """Collect the runs of the setting that validates best; they differ only in the seed."""
    settings: dict[tuple[str, float], list[Entry]] = defaultdict(list)
    for entry in entries:
        settings[setting_of(entry), entry.config["lr"]].append(entry)
    measured = [Measured(recipe, choose(same)[0], tuple(same)) for same in settings.values()]
    return max(measured, key=lambda each: each.rank)


def _rank(choice: Choice) -> tuple[float, int, float]:
    """Mean validation accuracy to two digits, the number of seeds, and the exact mean."""
    return round(choice.validation, 2), choice.seeds, choice.validation


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
        best.choice.mean,
        best.choice.deviation,
        best.choice.best,
        best.choice.seeds,
        best.recipe,
        _is_as_large(best.chosen.config, value.column),
    )


def _is_as_large(config: dict[str, Any], column: str) -> bool:
    """True for the paper's width and number of sequences, where the paper gives the latter."""
    sequences = SEQUENCES.get(column, ())
    return config["model"]["width"] == WIDTH and config["train_examples"] in sequences


def _average(value: PaperValue, parts: list[Place | None]) -> Neighbour:
    """Average our numbers over all columns, if each has been measured."""
    each = [_neighbour(value, part) for part in parts]
    means = [one.mean for one in each if one.mean is not None]
    if len(means) < len(each):
        return Neighbour(value)
    return Neighbour(
        value,
        statistics.mean(means),
        best=statistics.mean(one.best for one in each),
        runs=min(one.runs for one in each),
        recipe="mean of the columns",
    )
