"""The certified models in examples/models: small, and right by their proof and by running them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from statemix.proof import load_certificate, verify_certificate
from statemix.proof.moves import group_of, moves_above, sources
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


def test_the_first_layer_multiplies():
    """After ·, the digits permute four slots of a block as multiplication modulo 5 does."""
    model = load_certificate(MODELS[0].parent.parent / "mod_arith" / "certificate.json").model
    moves = sources(model)[:, 1].tolist()
    times = moves[7]
    slots = [0, 1, 3, 4]
    product = {d: [times[moves[d][slot]] for slot in slots] for d in (1, 2, 3, 4)}
    assert product[1] == slots
    assert product[2] == [1, 3, 4, 0]
    for d, first in product.items():
        for e in product:
            both = [product[e][slots.index(slot)] for slot in first]
            assert both == product[d * e % 5]


def test_the_second_layer_adds():
    """At digits and operators the slots are permuted by five reflections, which make rotations."""
    model = load_certificate(MODELS[0].parent.parent / "mod_arith" / "certificate.json").model
    (found,) = moves_above(
        model, find_task("mod_arith", {"answers": "prefixes"}).automaton
    ).values()
    permuting = [own for own, letters in found.items() if sorted(own) == list(range(5))]
    reflections = [own for own in permuting if own != (0, 1, 2, 3, 4)]
    assert len(reflections) == 5
    assert all(tuple(own[i] for i in own) == (0, 1, 2, 3, 4) for own in reflections)
    assert "a group of 10" in group_of(permuting)
