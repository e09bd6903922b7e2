"""Synthetic tasks that distinguish mixers: seeded, vectorised generators with exact solvers."""

from statemix.tasks import chomsky, groups, machines, mad
from statemix.tasks.split import shared_inputs, split_examples
from statemix.tasks.task import IGNORE, TASKS, Examples, Task, find_task, known_tasks, register_task

__all__ = [
    "IGNORE",
    "TASKS",
    "Examples",
    "Task",
    "chomsky",
    "find_task",
    "groups",
    "known_tasks",
    "machines",
    "mad",
    "register_task",
    "shared_inputs",
    "split_examples",
]
