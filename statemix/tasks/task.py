"""The definition of a task, and the registry that finds tasks by name.

A task draws examples: token sequences with a target class, or IGNORE, at every position. To add a
task, register a function that returns it:

    @register_task("mine")
    def mine() -> Task:
        return Task("mine", vocab=4, classes=2, draw=draw_mine, length=32)

where `draw_mine(count, length, rng)` returns `Examples`. An optional `solve` computes the targets
from the inputs alone, so that tests can check the generator against it.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemix.layers.mixer import check_option
from statemix.tasks.automaton import Automaton

__all__ = [
    "IGNORE",
    "TASKS",
    "Examples",
    "Task",
    "Tokens",
    "find_maker",
    "find_task",
    "known_tasks",
    "register_pattern",
    "register_task",
]

IGNORE = -100  # the target of a position that is not scored
Tokens = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """Inputs (count, length) and targets of the same shape."""

    inputs: Tokens
    targets: Tokens

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: Any) -> "Examples":
        return Examples(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True)
class Task:
    """A generator of examples, with the sizes of its vocabulary and of its set of classes.

    Args:
        name: name of the task in tables.
        vocab: tokens are 0 .. vocab - 1.
        classes: targets are 0 .. classes - 1, or IGNORE.
        draw: maps (count, length, rng) to Examples, deterministically for a given rng.
        length: default length of training sequences.
        solve: computes the exact targets from the inputs, if they are unique.
        lengths: description of the valid lengths, for error messages.
        fits: returns True for a valid length.
        train_draw: replaces `draw` for training examples, if given.
        model: the model for this task, "tagger" or "autoencoder".
        automaton: the answers at every length, if finitely many states suffice.
        letters: names of the tokens, for drawings; none if they are numbers.
    """

    name: str
    vocab: int
    classes: int
    draw: Callable[[int, int, np.random.Generator], Examples]
    length: int
    solve: Callable[[Tokens], Tokens] | None = None
    lengths: str = "any from 1 on"
    fits: Callable[[int], bool] = lambda length: length >= 1
    train_draw: Callable[[int, int, np.random.Generator], Examples] | None = None
    model: str = "tagger"
    automaton: Automaton | None = None
    letters: tuple[str, ...] = ()

    def examples(
        self, count: int, length: int, rng: np.random.Generator, *, training: bool = False
    ) -> Examples:
        """Draw `count` examples of a valid length."""
        if not self.fits(length):
            raise ValueError(
                f"The task {self.name!r} has no examples of length {length}. "
                f"Valid lengths: {self.lengths}."
            )
        draw = self.train_draw if training and self.train_draw is not None else self.draw
        drawn = draw(count, length, rng)
        check_drawn(self, drawn, count)
        return drawn


def check_drawn(task: Task, drawn: Examples, count: int) -> None:
    """Raise an error if examples have a wrong shape, or tokens or classes out of range."""
    shape = drawn.inputs.shape
    if len(shape) != 2 or shape != drawn.targets.shape or len(drawn) != count:
        raise ValueError(
            f"The task {task.name!r} must draw {count} rows of inputs and targets "
            f"of the same shape, got {shape} and {drawn.targets.shape}."
        )
    targets = drawn.targets[drawn.targets != IGNORE]
    for what, values, most in (
        ("tokens", drawn.inputs, task.vocab),
        ("targets", targets, task.classes),
    ):
        if values.size and not 0 <= values.min() <= values.max() < most:
            raise ValueError(
                f"The task {task.name!r} must draw {what} from 0 to {most - 1}, "
                f"got {values.min()} to {values.max()}."
            )


TASKS: dict[str, Callable[..., Task]] = {}
PATTERNS: list[tuple[re.Pattern[str], str, Callable[[re.Match[str]], dict[str, Any]]]] = []


def register_task(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Register a function that returns a task as `name`; its arguments are the task's options."""
    if not isinstance(name, str):
        raise TypeError(
            f'`register_task` takes a name, got {name!r}. Write @register_task("mine").'
        )

    def register(make: Callable[..., Task]) -> Callable[..., Task]:
        owner = "a group" if is_spelt(name) else origin(TASKS.get(name, make))
        if owner != origin(make):
            raise ValueError(
                f"The task name {name!r} is taken by {owner}. Choose another for {origin(make)}."
            )
        TASKS[name] = make
        return make

    return register


def origin(make: Callable[..., Task]) -> str:
    """Return the qualified name of a function, which stays the same if its module is reloaded."""
    return f"{make.__module__}.{make.__qualname__}"


def register_pattern(
    pattern: str, name: str, options: Callable[[re.Match[str]], dict[str, Any]]
) -> None:
    """Map names that match `pattern` to the task `name`, with options parsed from the match.

    For example, s5 is the task `group` with the family s and the order 5.
    """
    PATTERNS.append((re.compile(pattern, re.IGNORECASE), name, options))


def resolve(name: str) -> tuple[str, dict[str, Any]]:
    """Map `name` to the name of a registered task and the options that `name` implies."""
    matches = [
        (pattern.fullmatch(name), target, read)
        for pattern, target, read in PATTERNS
        if name not in TASKS
    ]
    return next(
        ((target, read(match)) for match, target, read in matches if match is not None), (name, {})
    )


def is_spelt(name: str) -> bool:
    """True if a pattern matches `name` and the options it implies are valid."""
    target, implied = resolve(name)
    try:
        return target != name and bool(TASKS[target](**implied))
    except ValueError:
        return False


def find_maker(name: str) -> Callable[..., Task]:
    """Find the function that makes the task called `name`."""
    target, _ = resolve(name)
    if target not in TASKS:
        raise ValueError(f"Unknown task {name!r}. Available: {', '.join(known_tasks())}.")
    return TASKS[target]


def find_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """Make the task called `name` with `options`."""
    make = find_maker(name)
    _, implied = resolve(name)
    chosen = dict(options or {})
    parameters = inspect.signature(make).parameters
    for option, value in chosen.items():
        if option in implied:
            raise ValueError(
                f"The name of the task {name!r} already sets `{option}` to {implied[option]!r}, "
                f"got {value!r}. Omit the option."
            )
        if option not in parameters:
            known = ", ".join(p for p in parameters if p not in implied) or "none"
            raise ValueError(f"Unknown option of task {name!r}: {option!r}. Available: {known}.")
        check_option(f"task {name!r}", option, value, parameters[option].annotation)
    return make(**implied, **chosen)


def known_tasks() -> list[str]:
    """List the available names, for error messages; families of groups appear as ranges."""
    groups = ["s2 .. s6", "a3 .. a6", "d3 .. d12", "z2 .. z999"]
    return [name for name in TASKS if name != "group"] + groups
