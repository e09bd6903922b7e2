"""`statemix tasks`: all tasks, their automata, and the blocks that carry them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from statemix.commands.train import read_options

__all__ = ["Tasks"]


@dataclass(frozen=True)
class Tasks:
    """List the tasks, and the smallest block that can track each of them.

    vocabulary, classes: the number of different tokens, and of different answers.

    answers: whether the task asks for one at every step, once per sequence, or at several steps.

    states: those of the smallest automaton that gives the answers, if the task has one.

    block: the smallest block size m with which a layer can track the states for any length, if its
    gates only copy and its slots hold functions of the state. "31 to 40" are bounds, "at least 8" a
    bound from below. docs/explanation/automata.md has the theorem and its proof.

    Examples: `statemix tasks`, `statemix tasks s5 cycle_nav`,
    `statemix tasks random_automaton --task-options states=6 seed=1`,
    `statemix tasks --dot parity | dot -Tsvg > parity.svg`.
    """

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Show only these tasks, and compute their blocks even if that takes long."""
    dot: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Print the smallest automaton of this task in the DOT language of Graphviz instead."""
    task_options: tuple[str, ...] = ()
    """Options of the tasks, as key=value; docs/reference/tasks.md lists them."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own tasks."""

    def run(self) -> None:
        options = read_options(self.task_options, "--task-options")
        if self.names and self.dot is not None:
            raise SystemExit("statemix: --dot draws one task; name it there, and no others.")
        if options and not self.names and self.dot is None:
            raise SystemExit("statemix: --task-options need the name of a task.")
        from statemix.commands.views.tasks import print_automaton, print_tasks
        from statemix.runs.plugins import load_files

        load_files(self.files)
        if self.dot is None:
            print_tasks(self.names, options)
        else:
            print_automaton(self.dot, options)
