"""Accuracies: of tokens, of classes on average, and of whole sequences; by position too."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from statemix.tasks import IGNORE, Examples, Task

EVALUATION_STEPS = 1 << 16  # tokens in a batch of an evaluation
ROWS = 256  # sequences that are looked at before the next are


@dataclass(frozen=True)
class Accuracy:
    """Over all scored positions: tokens, the mean over classes, whole sequences, and each position."""

    token: float
    macro: float
    sequence: float
    by_position: list[float]


def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    """The likeliest class at every position, without gradients."""
    rows = max(1, EVALUATION_STEPS // max(1, inputs.shape[1]))
    with torch.no_grad():
        return torch.cat([model(part)[0].argmax(-1) for part in inputs.split(rows)])


def all_end_right(model: nn.Module, examples: Examples) -> bool:
    """Whether the last scored position of each example is predicted right: a state that was lost on the way shows there."""
    model.eval()
    right = True
    for first in range(0, len(examples), ROWS):
        part = examples[first : first + ROWS]
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
    """Score the model's predictions."""
    model.eval()
    predicted = predict(model, torch.from_numpy(examples.inputs)).numpy()
    model.train()
    return score(predicted, examples.targets, classes)


def score(predicted: np.ndarray, targets: np.ndarray, classes: int) -> Accuracy:
    """Accuracies of predictions; positions that nobody scores have NaN."""
    scored, right = targets != IGNORE, predicted == targets
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
    """Token accuracy on `count` fresh sequences of each length; keys are text, as in JSON."""
    found = {}
    for length in lengths:
        fresh = task.examples(count, length, np.random.default_rng([seed, length]))
        found[str(length)] = measure_accuracy(model, fresh, task.classes).token
    return found
