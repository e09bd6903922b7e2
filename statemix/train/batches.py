"""The batch of each step: the next sequences of the epoch, or random ones of a curriculum stage."""

import numpy as np
import torch
from torch import Tensor

from statemix.tasks.task import Tokens
from statemix.train.aids import prefix_length
from statemix.train.state import Run

__all__ = ["next_batch"]

_CURRICULUM_ROWS = 512  # sequences in a batch of a curriculum, at most


def next_batch(run: Run) -> tuple[Tensor, Tensor]:
    """Inputs and targets of the current step."""
    config = run.config
    counters = run.counters
    train = run.data["train"]
    length = run.length
    if config.curriculum:
        length = prefix_length(run)
        rng = np.random.default_rng([config.seed, counters.attempt, counters.step])
        count = min(_CURRICULUM_ROWS, max(1, config.stage_tokens // length))
        if config.stages == "words":
            rows = rng.choice(_short_words(run, length), count)
        else:
            rows = rng.integers(0, len(train), count)
    else:
        epoch, place = divmod(counters.step, config.steps_per_epoch)
        order = np.random.default_rng([config.seed, epoch]).permutation(len(train))
        rows = order[place * config.batch : (place + 1) * config.batch]
    inputs = torch.from_numpy(train.inputs[rows, :length])
    return inputs, torch.from_numpy(train.targets[rows, :length])


def _short_words(run: Run, length: int) -> Tokens:
    """The training sequences whose last answer comes within the first `length` tokens."""
    rows = np.flatnonzero(run.ends <= length)
    if not len(rows):
        raise ValueError(
            f"No training sequence of the task {run.task.name!r} ends within {length} tokens, a "
            "stage of `curriculum`. Start with a longer one, or use --stages prefixes."
        )
    return rows
