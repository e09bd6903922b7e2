"""Training, validation and test examples that share no input, wherever there are enough inputs to share out."""

import numpy as np

from statemix.tasks.task import Examples, Task, Tokens

ATTEMPTS = 20  # draws to replace examples that are already taken
CROWDED = 0.1  # where more than this share is taken at once, the space is too small: replacing them would change what is drawn


def split_examples(
    task: Task, counts: dict[str, int], length: int, seed: int
) -> dict[str, Examples]:
    """Draw each of train, validation and test from a stream of its own.

    Validation and test are drawn first.  Training examples whose input is among theirs are drawn again; where an input space is too small
    for that, the examples stay, and `shared_inputs` tells how many.
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
    """Examples whose inputs are not `taken`, as far as that can be had."""
    examples = task.examples(count, length, rng, training=training)
    for _ in range(ATTEMPTS):
        clashes = (
            np.flatnonzero([key in taken for key in rows_as_bytes(examples.inputs)])
            if taken
            else np.empty(0, dtype=np.int64)
        )
        if len(clashes) == 0 or len(clashes) > CROWDED * count:
            break
        fresh = task.examples(len(clashes), length, rng, training=training)
        examples.inputs[clashes], examples.targets[clashes] = fresh.inputs, fresh.targets
    return examples


def shared_inputs(split: dict[str, Examples]) -> int:
    """How many training examples have an input that is also in validation or test."""
    held_out = keys(split["validation"].inputs) | keys(split["test"].inputs)
    return sum(key in held_out for key in rows_as_bytes(split["train"].inputs))


def keys(inputs: Tokens) -> set[bytes]:
    return set(rows_as_bytes(inputs))


def rows_as_bytes(inputs: Tokens) -> list[bytes]:
    data = np.ascontiguousarray(inputs.astype(np.int16))
    return data.view(f"V{2 * data.shape[1]}").ravel().tolist()
