"""Training, validation and test examples, without common inputs if the input space allows it."""

import numpy as np

from statemix.tasks.task import Examples, Task, Tokens

__all__ = ["shared_inputs", "split_examples"]

ATTEMPTS = 20  # how often training examples that occur in another split are redrawn
# If a larger share than this occurs in another split, the input space is small, and redrawing would
# change the distribution.
CROWDED = 0.1


def split_examples(
    task: Task, counts: dict[str, int], length: int, seed: int
) -> dict[str, Examples]:
    """Draw the splits train, validation and test, each from a separate random stream.

    Validation and test are drawn first. Training examples with the input of a held-out example are
    redrawn. If the input space is too small, they are kept; `shared_inputs` counts them.
    """
    streams = dict(
        zip(("test", "validation", "train"), np.random.SeedSequence(seed).spawn(3), strict=True)
    )
    taken: set[bytes] = set()
    split = {}
    for name, stream in streams.items():
        rng = np.random.default_rng(stream)
        examples = draw_apart(task, counts[name], length, rng, taken, training=name == "train")
        if name != "train":
            taken |= keys(examples.inputs)
        split[name] = examples
    return split


def draw_apart(
    task: Task,
    count: int,
    length: int,
    rng: np.random.Generator,
    taken: set[bytes],
    *,
    training: bool,
) -> Examples:
    """Draw examples and redraw those whose inputs are in `taken`, unless there are too many."""
    examples = task.examples(count, length, rng, training=training)
    for _ in range(ATTEMPTS if taken else 0):
        clashes = np.flatnonzero([key in taken for key in rows_as_bytes(examples.inputs)])
        if len(clashes) == 0 or len(clashes) > CROWDED * count:
            break
        fresh = task.examples(len(clashes), length, rng, training=training)
        examples.inputs[clashes] = fresh.inputs
        examples.targets[clashes] = fresh.targets
    return examples


def shared_inputs(split: dict[str, Examples]) -> int:
    """Count the training examples whose input also occurs in validation or test."""
    held_out = keys(split["validation"].inputs) | keys(split["test"].inputs)
    return sum(key in held_out for key in rows_as_bytes(split["train"].inputs))


def keys(inputs: Tokens) -> set[bytes]:
    """Collect the distinct rows of `inputs`."""
    return set(rows_as_bytes(inputs))


def rows_as_bytes(inputs: Tokens) -> list[bytes]:
    """Convert each row to bytes, so that rows can be compared and hashed."""
    data = np.ascontiguousarray(inputs.astype(np.int16))
    return data.view(f"V{2 * data.shape[1]}").ravel().tolist()
