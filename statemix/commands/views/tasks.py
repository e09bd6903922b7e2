"""What `statemix tasks` prints: a table of tasks, or the drawing of an automaton."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.table import Column, Table

from statemix.analysis.automata import BlockSize, minimise, smallest_block, to_dot
from statemix.commands.views.console import make_console, say
from statemix.tasks import IGNORE, TASKS, Task, find_task
from statemix.tasks.automaton import Automaton

__all__ = ["print_automaton", "print_tasks"]

_GROUPS = (
    *(f"s{k}" for k in range(2, 7)),
    *(f"a{k}" for k in range(3, 7)),
    *(f"d{k}" for k in range(3, 13)),
    *("z2", "z3", "z60"),
)
_QUICK = 200_000  # transitions up to which a block takes at most about two seconds
_SHOWN = 10_000  # upper bounds above this say nothing
_NOTE = (
    "The block of z2 .. z999 is the largest power of a prime that divides the order. "
    "Blocks that take long are skipped; `statemix tasks s6` computes that of s6."
)


def print_tasks(names: tuple[str, ...], options: Mapping[str, Any]) -> None:
    """A table of the tasks called `names`, or of all."""
    sizes = (Column(title, justify="right") for title in ("vocabulary", "classes"))
    found = (Column(title, justify="right", no_wrap=True) for title in ("states", "block"))
    table = Table(Column("task", no_wrap=True), *sizes, "answers", *found, box=SIMPLE)
    every = (*(name for name in TASKS if name != "group"), *_GROUPS)
    for name in names or every:
        table.add_row(name, *_describe(find_task(name, options), patient=bool(names)))
    make_console().print(table)
    if not names:
        say(_NOTE)


def print_automaton(name: str, options: Mapping[str, Any]) -> None:
    """The smallest automaton of a task in DOT."""
    automaton = find_task(name, options).automaton
    if automaton is None:
        raise ValueError(
            f"The task {name!r} has no automaton to draw. `statemix tasks` lists the states of "
            "those that have one."
        )
    print(to_dot(minimise(automaton)))


def _describe(task: Task, *, patient: bool) -> tuple[str, ...]:
    """Vocabulary, classes, answers, states and block."""
    sizes = f"{task.vocab:,}", f"{task.classes:,}", _answers(task)
    if task.automaton is None:
        return *sizes, "", ""
    minimal = minimise(task.automaton)
    states = f"{minimal.states:,}"
    return *sizes, states, _block(minimal) if patient or _is_quick(minimal) else "skipped"


def _answers(task: Task) -> str:
    """At how many steps of a sequence the task asks for an answer."""
    drawn = task.examples(16, task.length, np.random.default_rng(0))
    counts = (drawn.targets != IGNORE).sum(1)
    if (counts == drawn.targets.shape[1]).all():
        return "every step"
    return "once" if (counts == 1).all() else "several"


def _is_quick(automaton: Automaton) -> bool:
    return automaton.step.size <= _QUICK


def _block(automaton: Automaton) -> str:
    """The size of the smallest block, or its bounds."""
    found: BlockSize = smallest_block(automaton)
    if found.is_exact:
        return str(found.upper)
    return f"{found.lower} to {found.upper}" if found.upper <= _SHOWN else f"at least {found.lower}"
