"""The sequences of a run: those that it trains on, and those that it is measured on."""

import inspect

import numpy as np

from statemix.config.task import RunConfig
from statemix.tasks import Examples, Task, find_task, split_examples
from statemix.tasks.task import find_maker

__all__ = ["draw_data", "draw_fresh"]

# Number of held-out tokens for the check `hold`: fewer would not show an error this rare.
HELD_TOKENS = 1 << 19


def draw_data(config: RunConfig, task: Task) -> dict[str, Examples]:
    """The training, validation and test sequences, and the longer ones of the check `hold`."""
    counts = {
        "train": config.train_examples,
        "validation": config.test_examples,
        "test": config.test_examples,
    }
    data = split_examples(task, counts, config.length or task.length, config.seed)
    if config.hold:
        count = -(-HELD_TOKENS // config.hold)
        rng = np.random.default_rng([config.seed, config.hold, 1])
        data["hold"] = task.examples(count, config.hold, rng)
    return data | _draw_tested(config)


def _draw_tested(config: RunConfig) -> dict[str, Examples]:
    """Validation and test examples of the lengths `tested`, if the config has them."""
    if not config.tested:
        return {}
    if "shortest" not in inspect.signature(find_maker(config.task)).parameters:
        raise ValueError(
            f"`tested` = {config.tested} needs a task with words of several lengths, such as "
            f"parity, got {config.task!r}."
        )
    shortest, longest = config.tested
    task = find_task(config.task, {**config.task_options, "shortest": shortest})
    last = next(length for length in range(longest, 0, -1) if task.fits(length))
    return {
        name: task.examples(
            config.test_examples,
            last,
            np.random.default_rng([config.seed, last, stream]),
            training=True,
        )
        for stream, name in enumerate(("validation", "test"), 2)
    }


def draw_fresh(config: RunConfig, task: Task, epoch: int) -> Examples:
    """The training sequences of an epoch, a function of the seed and the epoch."""
    rng = np.random.default_rng([config.seed, epoch, 4])
    return task.examples(config.train_examples, config.length or task.length, rng, training=True)
