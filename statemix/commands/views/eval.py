"""What `statemix eval` prints: accuracy at each length."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.table import Table

from statemix.commands.views.console import make_console, say
from statemix.commands.views.train import warn_of_changes
from statemix.tasks import Task
from statemix.train.metrics import measure_accuracy
from statemix.train.trained import load_trained

__all__ = ["fitting_lengths", "print_evaluation"]


def print_evaluation(
    directory: Path, lengths: tuple[int, ...], examples: int, seed: int, out: Path | None
) -> None:
    """Print the accuracy per token, per sequence and at the last position for each length."""
    config, task, model = load_trained(directory)
    warn_of_changes(config, directory)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    title = f"{config.task}, {config.model.mixer}"
    table = Table(
        "length", "tokens", "sequences", "last position", title=title, title_justify="left"
    )
    lines = []
    for length in fitting_lengths(task, getattr(model, "length", None), lengths):
        fresh = task.examples(examples, length, np.random.default_rng([seed, length]))
        accuracy = measure_accuracy(model, fresh, task.classes)
        shares = (accuracy.token, accuracy.sequence, accuracy.by_position[-1])
        table.add_row(str(length), *(f"{share:.4f}" for share in shares))
        by_position = [None if math.isnan(share) else share for share in accuracy.by_position]
        lines.append(
            {"run": config.id, "length": length, **asdict(accuracy), "by_position": by_position}
        )
    make_console().print(table)
    if out is not None:
        with out.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def fitting_lengths(task: Task, longest: int | None, lengths: tuple[int, ...]) -> list[int]:
    """The `lengths` that the task and the model's `longest` positions allow.

    If none is allowed, lengths one above or below are used, and `longest` if these do not fit
    either. Every change is reported on stderr.
    """

    def fits(length: int) -> bool:
        return task.fits(length) and (longest is None or length <= longest)

    limit = "" if longest is None else f", the model {longest} positions"
    reason = f"the task {task.name!r} has lengths {task.lengths}{limit}"
    steps = (0,) if any(map(fits, lengths)) else (1, -1)
    last_resort = (
        None if any(fits(length + step) for length in lengths for step in steps) else longest
    )
    chosen: list[int] = []
    for length in lengths:
        near = next((length + step for step in steps if fits(length + step)), last_resort)
        if near != length:
            instead = "left out" if near is None else f"replaced by {near}"
            say(f"length {length} {instead}: {reason}", stderr=True)
        if near is not None and near not in chosen:
            chosen.append(near)
    return chosen
