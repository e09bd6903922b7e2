"""Accuracies: of tokens, averaged over classes, of full sequences, and by position."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor, nn

from statemix.config.fields import Range
from statemix.tasks import IGNORE, Examples, Task

__all__ = [
    "Accuracies",
    "Accuracy",
    "Share",
    "accuracy_by_length",
    "all_end_right",
    "first_scored",
    "measure_accuracy",
    "predict",
    "score",
]

_BATCH_TOKENS = 1 << 16  # tokens in an evaluation batch
_ROWS = 256  # held-out sequences that are evaluated before the next ones


Share = Annotated[float, Range("between 0 and 1", lambda x: 0 <= x <= 1)]


@dataclass(frozen=True)
class Accuracies:
    """The accuracies in the result of a run: of tokens, the mean over classes, of sequences."""

    token: Share
    macro: Share
    sequence: Share


@dataclass(frozen=True)
class Accuracy:
    """Accuracy of tokens, its mean over classes, of full sequences, and at each position."""

    token: float
    macro: float
    sequence: float
    by_position: list[float]


def first_scored(targets: Tensor) -> int:
    """The first position that is scored in some sequence."""
    return int((targets != IGNORE).any(0).int().argmax())


def predict(model: nn.Module, inputs: Tensor, read_from: int = 0) -> Tensor:
    """The most likely class at every position from `read_from` on, without gradients."""
    rows = max(1, _BATCH_TOKENS // max(1, inputs.shape[1]))
    late = {"read_from": read_from} if read_from else {}
    with torch.no_grad():
        return torch.cat([model(part, **late)[0].argmax(-1) for part in inputs.split(rows)])


def all_end_right(model: nn.Module, examples: Examples) -> bool:
    """True if the last scored position of every example is predicted correctly.

    A state that was lost on the way shows there.
    """
    model.eval()
    right = True
    for first in range(0, len(examples), _ROWS):
        part = examples[first : first + _ROWS]
        last = part.targets.shape[1] - 1 - (part.targets[:, ::-1] != IGNORE).argmax(1)[:, None]
        predicted = predict(model, torch.from_numpy(part.inputs)).numpy()
        right = bool(
            (
                np.take_along_axis(predicted, last, 1) == np.take_along_axis(part.targets, last, 1)
            ).all()
        )
        if not right:
            break
    model.train()
    return right


def measure_accuracy(model: nn.Module, examples: Examples, classes: int) -> Accuracy:
    """The accuracy of the model's predictions."""
    model.eval()
    first = first_scored(torch.from_numpy(examples.targets))
    predicted = np.full_like(examples.targets, IGNORE)
    predicted[:, first:] = predict(model, torch.from_numpy(examples.inputs), first).numpy()
    model.train()
    return score(predicted, examples.targets, classes)


def score(predicted: np.ndarray, targets: np.ndarray, classes: int) -> Accuracy:
    """The accuracy of `predicted`; positions that are never scored have NaN."""
    scored = targets != IGNORE
    right = predicted == targets
    count = np.bincount(targets[scored], minlength=classes)
    hits = np.bincount(targets[scored & right], minlength=classes)
    asked = scored.sum(0)
    by_position = np.where(asked > 0, (scored & right).sum(0) / np.maximum(asked, 1), np.nan)
    return Accuracy(
        token=float(hits.sum() / max(1, count.sum())),
        macro=float((hits[count > 0] / count[count > 0]).mean()) if count.sum() else 0.0,
        sequence=float((right | ~scored).all(1).mean()),
        by_position=[float(x) for x in by_position],
    )


def accuracy_by_length(
    task: Task, model: nn.Module, lengths: Iterable[int], count: int, seed: int
) -> dict[str, float]:
    """Token accuracy on `count` new sequences of each length; keys are strings, as in JSON."""
    found = {}
    for length in lengths:
        fresh = task.examples(count, length, np.random.default_rng([seed, length]))
        found[str(length)] = measure_accuracy(model, fresh, task.classes).token
    return found
