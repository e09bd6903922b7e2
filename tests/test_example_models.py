"""The certified models in examples/models: small, and right by their proof and by running them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from statemix.proof import verify_certificate
from statemix.tasks import find_task

MODELS = sorted((Path(__file__).parent.parent / "examples" / "models").glob("*/certificate.json"))
LARGEST = 500_000  # bytes of a model's directory


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.parent.name)
def test_a_certified_model_is_small_and_right(path):
    """The proof holds for the weights, and long random words agree with the task's own solver."""
    saved = verify_certificate(path)
    assert saved.task == path.parent.name
    assert sum(each.stat().st_size for each in path.parent.iterdir()) < LARGEST
    task = find_task(saved.task, saved.task_options)
    words = task.examples(8, 2049, np.random.default_rng(0))
    with torch.no_grad():
        predicted = saved.model(torch.from_numpy(words.inputs))[0].argmax(-1).numpy()
    scored = words.targets >= 0
    assert scored.any()
    np.testing.assert_array_equal(predicted[scored], words.targets[scored])


def test_there_are_models():
    assert "s5" in [path.parent.name for path in MODELS]
