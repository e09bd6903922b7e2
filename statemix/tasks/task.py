"""What a task is, the table of those that a name finds, and how examples are drawn and split.

A task draws examples: token sequences, and for every position the class to predict, or IGNORE.  One function adds one:

    @register_task("mine")
    def mine() -> Task:
        return Task("mine", vocab=4, classes=2, draw=draw_mine, length=32)

where `draw_mine(count, length, rng)` returns `Examples`.  With a `solve` that computes targets from inputs alone, tests can hold the
generator against it.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from statemix.layers.mixer import check_option

IGNORE = -100  # a target that nobody predicts
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
    """How to draw examples of a task, and how many tokens and classes they have.

    Args:
        name: what tables call it.
        vocab: tokens are 0 .. vocab - 1.
        classes: targets are 0 .. classes - 1, or IGNORE.
        draw: (count, length, rng) to Examples; the same bits for the same rng.
        length: of training sequences, where nothing else is asked for.
        solve: targets from inputs alone, exactly, where there is one answer.
        lengths: the lengths that fit, as a sentence, or None if any from 1 on do.
        fits: whether a length fits.
        train_draw: how training examples are drawn, where that is another way.
        model: which model the task is made for, a name from `statemix.models`.
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

    def examples(
        self, count: int, length: int, rng: np.random.Generator, *, training: bool = False
    ) -> Examples:
        """Draw `count` examples of a length that fits."""
        if not self.fits(length):
            raise ValueError(
                f"The task {self.name!r} has no examples of length {length}. Lengths that fit: {self.lengths}."
            )
        draw = self.train_draw if training and self.train_draw is not None else self.draw
        drawn = draw(count, length, rng)
        check_drawn(self, drawn, count)
        return drawn


def check_drawn(task: Task, drawn: Examples, count: int) -> None:
    """As many examples as were asked for, whose tokens and targets are what the task says."""
    shapes = drawn.inputs.shape, drawn.targets.shape
    if len(shapes[0]) != 2 or shapes[0] != shapes[1] or len(drawn) != count:
        raise ValueError(
            f"The task {task.name!r} must draw {count} rows of inputs, targets of their shape, got {shapes[0]} and {shapes[1]}."
        )
    targets = drawn.targets[drawn.targets != IGNORE]
    for what, values, most in (
        ("tokens", drawn.inputs, task.vocab),
        ("targets", targets, task.classes),
    ):
        if values.size and not 0 <= values.min() <= values.max() < most:
            raise ValueError(
                f"The task {task.name!r} must draw {what} from 0 to {most - 1}, got {values.min()} to {values.max()}."
            )


TASKS: dict[str, Callable[..., Task]] = {}
PATTERNS: list[tuple[re.Pattern[str], str, Callable[[re.Match[str]], dict[str, Any]]]] = []


def register_task(name: str) -> Callable[[Callable[..., Task]], Callable[..., Task]]:
    """Make the task that a function returns known as `name` to every command; its arguments become the task's options."""
    if not isinstance(name, str):
        raise TypeError(
            f'`register_task` takes a name, got {name!r}. Write @register_task("mine").'
        )

    def register(make: Callable[..., Task]) -> Callable[..., Task]:
        if name in TASKS and origin(TASKS[name]) != origin(make):
            raise ValueError(
                f"The task name {name!r} is taken by {origin(TASKS[name])}. Choose another for {origin(make)}."
            )
        if name not in TASKS and is_spelt(name):
            raise ValueError(
                f"The task name {name!r} is taken by a group. Choose another for {origin(make)}."
            )
        TASKS[name] = make
        return make

    return register


def origin(make: Callable[..., Task]) -> str:
    """Where a function comes from: the same after a reload, another for a namesake."""
    return f"{make.__module__}.{make.__qualname__}"


def register_pattern(
    pattern: str, name: str, options: Callable[[re.Match[str]], dict[str, Any]]
) -> None:
    """Let names that match `pattern` stand for the task `name` with options read off them: s5 for the group S_5."""
    PATTERNS.append((re.compile(pattern, re.IGNORECASE), name, options))


def resolve(name: str) -> tuple[str, dict[str, Any]]:
    """The registered name that `name` stands for, and the options that it spells."""
    matches = [
        (pattern.fullmatch(name), target, read)
        for pattern, target, read in PATTERNS
        if name not in TASKS
    ]
    return next(
        ((target, read(match)) for match, target, read in matches if match is not None), (name, {})
    )


def is_spelt(name: str) -> bool:
    """Whether a pattern makes a task of `name`, and not only matches it."""
    target, spelt = resolve(name)
    try:
        return target != name and bool(TASKS[target](**spelt))
    except ValueError:
        return False


def find_maker(name: str) -> Callable[..., Task]:
    """The function that makes the task called `name`."""
    target, _ = resolve(name)
    if target not in TASKS:
        raise ValueError(f"Unknown task {name!r}. Available: {', '.join(known_tasks())}.")
    return TASKS[target]


def find_task(name: str, options: Mapping[str, Any] | None = None) -> Task:
    """The task called `name`, made with `options`."""
    make, spelt, chosen = find_maker(name), resolve(name)[1], dict(options or {})
    parameters = inspect.signature(make).parameters
    for option, value in chosen.items():
        if option in spelt:
            raise ValueError(
                f"The name of task {name!r} spells its `{option}`, {spelt[option]!r}: leave that option out, got {value!r}."
            )
        if option not in parameters:
            known = ", ".join(p for p in parameters if p not in spelt) or "none"
            raise ValueError(f"Unknown option of task {name!r}: {option!r}. Available: {known}.")
        check_option(f"task {name!r}", option, value, parameters[option].annotation)
    return make(**spelt, **chosen)


def known_tasks() -> list[str]:
    """Names to choose from, those with a number in them spelt by example."""
    return [name for name in TASKS if name != "group"] + ["s2 .. s6", "a3 .. a6", "z2 .. z999"]
