"""The automaton that a model is: read from its weights, with and without the task's."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from statemix.analysis.automata import extract, minimise
from statemix.models import ModelConfig, Tagger
from statemix.proof import load_certificate
from statemix.tasks import find_task

MODELS = Path(__file__).parents[1] / "examples" / "models"


def load(name):
    saved = load_certificate(MODELS / name / "certificate.json")
    return saved.model, find_task(saved.task, saved.task_options).automaton


def assert_equal(found, expected):
    np.testing.assert_array_equal(found.step, expected.step)
    np.testing.assert_array_equal(found.answer, expected.answer)
    assert found.start == expected.start


def test_a_model_of_a_group_is_the_group():
    """Nothing of the task is given: 120 states and their products are in the weights."""
    model, automaton = load("s5")
    assert_equal(extract(model), minimise(automaton))


def test_a_model_of_two_layers():
    model, automaton = load("mod_arith")
    assert_equal(extract(model, automaton), minimise(automaton))


def test_a_wrong_model_is_another_automaton():
    """After the change of one logit, the automaton answers as the model does, and not the task."""
    model, automaton = load("s5")
    broken = copy.deepcopy(model)
    with torch.no_grad():
        broken.head.bias[7] += 6.0
    found = extract(broken)
    words = np.random.default_rng(0).integers(0, 120, (16, 64))
    with torch.no_grad():
        predicted = broken(torch.from_numpy(words))[0].argmax(-1).numpy()
    np.testing.assert_array_equal(found.solve(words), predicted)
    assert (predicted != automaton.solve(words)).any()


def test_too_many_states_are_an_error():
    torch.manual_seed(0)
    options = {"n_blocks": 6, "block_size": 4, "gate": "hardmax"}
    model = Tagger(ModelConfig("bdlru", options, width=8, channel_mixer="none"), 6, 6)
    with torch.no_grad():
        model.embedding.weight.normal_()
    with pytest.raises(ValueError, match="more than 20 states, or not finitely many"):
        extract(model, limit=20)
    with pytest.raises(ValueError, match="reads 6 tokens, but the automaton has 120 letters"):
        extract(model, find_task("s5").automaton)
