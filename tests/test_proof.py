"""Certificates: exact models are proved, broken ones are refused with a word that shows it."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from statemix.models import ModelConfig, Tagger
from statemix.proof import (
    certify,
    consistent_blocks,
    keep_blocks,
    live_blocks,
    refit,
    shallow,
)
from statemix.proof.prove import prove
from statemix.proof.refit import prune
from statemix.proof.rounding import Bounded, add, layer_norm, linear
from statemix.tasks import find_task
from statemix.tasks.automaton import NO_STEP, Automaton
from statemix.tasks.groups import elements

GATE = 6.0  # distance between a chosen gate and the others


def exact_model(order=3, blocks=3, seed=0):
    """A tagger for S_k whose first block copies exactly as the group acts; the others are noise.

    Slot i of the block holds q(i): reading x, the product q x sends i to q(x(i)), so slot i takes
    the value of slot x(i).
    """
    torch.manual_seed(seed)
    permutations = torch.tensor(elements("s", order))
    V = len(permutations)
    options = {"n_blocks": blocks, "block_size": order, "gate": "hardmax"}
    model = Tagger(ModelConfig("bdlru", options, width=V + 2, channel_mixer="none"), V, V)
    block = model.blocks[0]
    with torch.no_grad():
        model.embedding.weight.normal_()
        inputs = block.mixer_norm(model.embedding.weight).double()  # V letters, then BOS
        chosen = torch.full((V + 1, blocks, order), order)
        chosen[:V] = torch.randint(order + 1, (V, blocks, order))
        chosen[:V, 0] = permutations
        gates = GATE * nn.functional.one_hot(chosen, order + 1).double()
        values = torch.randn(V + 1, blocks, order).double()
        values[-1, 0] = torch.arange(order) - (order - 1) / 2
        inverse = torch.linalg.pinv(inputs)
        block.mixer.W_g.weight.copy_((inverse @ gates.flatten(1)).T)
        block.mixer.W_v.weight.copy_((inverse @ values.flatten(1)).T)
    return model.eval()


@pytest.fixture(scope="module")
def s3():
    task = find_task("s3")
    return refit(prune(exact_model(), task.automaton), task.automaton), task


def answers(model, words):
    with torch.no_grad():
        return model(torch.from_numpy(words))[0].argmax(-1).numpy()


def test_an_exact_model_is_proved(s3):
    model, task = s3
    certificate = certify(model, task.automaton)
    assert certificate.holds, certificate
    assert certificate.pairs == 6
    assert certificate.counterexample is None
    assert 0 < certificate.slack < certificate.margin
    assert 0 < certificate.gate_slack < GATE
    assert "every word of every length" in certificate.reason


def test_what_is_proved_is_true(s3):
    model, task = s3
    words = np.random.default_rng(0).integers(0, 6, (16, 4096))
    np.testing.assert_array_equal(answers(model, words), task.automaton.solve(words))


def test_blocks_that_hold_a_function_of_the_state_are_found():
    model = exact_model(blocks=6)
    automaton = find_task("s3").automaton
    consistent = consistent_blocks(model, automaton)
    assert consistent[0]
    assert not consistent.all()
    assert prune(model, automaton).blocks[0].mixer.state_shape[0] == int(consistent.sum())


def test_dropping_blocks_equals_not_reading_them():
    model = exact_model(blocks=4)
    kept = torch.tensor([True, False, True, False])
    silent = copy.deepcopy(model)
    with torch.no_grad():
        silent.blocks[0].mixer.W_o.weight.view(-1, 4, 3)[:, ~kept] = 0.0
    assert live_blocks(silent.blocks[0].mixer).tolist() == kept.tolist()
    smaller = copy.deepcopy(model)
    smaller.blocks[0].mixer = keep_blocks(model.blocks[0].mixer, kept)
    words = torch.randint(6, (3, 40))
    torch.testing.assert_close(smaller(words)[0], silent(words)[0], rtol=1e-5, atol=1e-6)


def test_broken_models_are_refused_with_a_word_that_shows_it(s3):
    """Fifty mutations of one row of gates for one letter, each of which changes the function."""
    model, task = s3
    rng = np.random.default_rng(1)
    words = rng.integers(0, 6, (32, 64))
    inputs = model.blocks[0].mixer_norm(model.embedding.weight).double()
    inverse = torch.linalg.pinv(inputs.detach())
    n, m, columns = model.blocks[0].mixer.gate_shape
    refused = 0
    while refused < 50:
        broken = copy.deepcopy(model)
        mixer = broken.blocks[0].mixer
        gates = (inputs @ mixer.W_g.weight.double().T).view(-1, n, m, columns).detach()
        letter, block, row = rng.integers(7), rng.integers(n), rng.integers(m)
        order = torch.from_numpy(rng.permutation(columns))
        gates[letter, block, row] = gates[letter, block, row][order]
        with torch.no_grad():
            mixer.W_g.weight.copy_((inverse @ gates.flatten(1)).T)
        certificate = certify(broken, task.automaton)
        changed = bool((answers(broken, words) != task.automaton.solve(words)).any())
        assert certificate.holds is not changed
        if changed:
            word = np.array([certificate.counterexample])
            assert answers(broken, word)[0, -1] != task.automaton.solve(word)[0, -1]
            refused += 1


def test_the_automaton_of_another_task_is_refused(s3):
    """Z6 has as many elements as S3; D3 is S3, and its elements have the same order."""
    model, _ = s3
    automaton = find_task("z6").automaton
    certificate = certify(model, automaton)
    assert not certificate.holds
    word = np.array([certificate.counterexample])
    assert answers(model, word)[0, -1] != automaton.solve(word)[0, -1]
    assert certify(model, find_task("d3").automaton).holds


def test_a_swapped_class_is_refused(s3):
    model, task = s3
    answer = task.automaton.answer.copy()
    answer[4, 2] = (answer[4, 2] + 1) % 6
    assert not certify(model, replace(task.automaton, answer=answer)).holds


def test_gates_that_nearly_tie_are_refused(s3):
    model, task = s3
    tied = copy.deepcopy(model)
    with torch.no_grad():
        for p in tied.blocks[0].mixer.W_g.parameters():
            p.mul_(1e-7)
            p.add_(1.0 if p.ndim == 1 else 0.0)
    certificate = certify(tied, task.automaton)
    assert not certificate.holds
    assert "gates of a row are closer than the rounding error of float32" in certificate.reason
    assert certify(tied, task.automaton, dtype="float64").holds


def test_a_walk_that_does_not_close_says_so(s3):
    model, task = s3
    certificate = certify(model, task.automaton, limit=3)
    assert not certificate.holds
    assert "did not close" in certificate.reason


def test_words_with_one_answer_at_the_end():
    """Parity: the letter after which nothing follows asks for the answer."""
    step = np.array([[0, 1, NO_STEP], [1, 0, NO_STEP]])
    answer = np.array([[-100, -100, 0], [-100, -100, 1]])
    automaton = Automaton(step, answer)
    torch.manual_seed(0)
    options = {"n_blocks": 1, "block_size": 2, "gate": "hardmax"}
    model = Tagger(ModelConfig("bdlru", options, width=6, channel_mixer="none"), 3, 2)
    mixer = model.blocks[0].mixer
    with torch.no_grad():
        model.embedding.weight.normal_()
        inverse = torch.linalg.pinv(model.blocks[0].mixer_norm(model.embedding.weight).double())
        chosen = torch.tensor([[0, 1], [1, 0], [0, 1], [2, 2]])  # keep, swap, keep, load at BOS
        gates = GATE * nn.functional.one_hot(chosen, 3).double()
        values = torch.zeros(4, 2).double()
        values[-1] = torch.tensor([-1.0, 1.0])
        mixer.W_g.weight.copy_((inverse @ gates.flatten(1)).T)
        mixer.W_v.weight.copy_((inverse @ values).T)
    certificate = certify(refit(model, automaton), automaton)
    assert certificate.holds, certificate
    assert certificate.pairs == 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ModelConfig("bdlru", channel_mixer="none"), "gates must be hard .* got .* 'softmax'"),
        (ModelConfig("lstm", {"hidden": 4}), "Only models of BD-LRUs can be certified, got a LSTM"),
        (ModelConfig("bdlru", {"gate": "hardmax"}), "models without a channel mixer"),
    ],
)
def test_models_that_cannot_be_certified_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        certify(Tagger(config, 6, 6), find_task("s3").automaton)


def test_an_automaton_with_other_letters_is_named(s3):
    model, _ = s3
    with pytest.raises(ValueError, match="The model reads 6 tokens, but the automaton has 24"):
        certify(model, find_task("s4").automaton)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_rounding_errors_stay_within_their_bounds(scale):
    """Float32 results, and inputs that are off by their own bounds, against exact arithmetic."""
    torch.manual_seed(0)
    unit = 2.0**-24
    for trial in range(50):
        width = 1 + trial
        exact = scale * torch.randn(20, width).double()
        error = exact.abs() * 1e-6
        off = exact + error * (2 * torch.rand_like(exact) - 1)
        x = Bounded(exact, error + unit * off.abs())
        given = off.float()
        W = nn.Linear(width, 7)
        value, bound = linear(W, x, unit)
        assert ((W(given).double() - value).abs() <= bound).all()
        value, bound = add(x, x, unit)
        assert (((given + given).double() - value).abs() <= bound).all()
        if width >= 3:
            norm = nn.LayerNorm(width)
            nn.init.normal_(norm.weight)
            nn.init.normal_(norm.bias)
            value, bound = layer_norm(norm, x, unit)
            assert ((norm(given).double() - value).abs() <= bound).all()


def test_a_variance_that_cannot_be_bounded_is_named():
    constant = torch.full((1, 8), 1e6).double()
    with pytest.raises(ArithmeticError, match="variance in a LayerNorm is too small"):
        layer_norm(nn.LayerNorm(8), Bounded(constant, constant * 1e-6), 2.0**-24)


def test_more_blocks_are_kept_if_the_first_do_not_suffice(monkeypatch):
    """Without the consistent block, the one with the fewest states of its own is added."""
    model = exact_model(blocks=5, seed=3)
    automaton = find_task("s3").automaton
    found = prove(model, automaton)
    assert found.certificate.holds
    consistent = consistent_blocks(model, automaton)
    monkeypatch.setattr(shallow, "consistent_blocks", lambda *_: torch.zeros_like(consistent))
    wider = prove(model, automaton)
    assert wider.certificate.holds
    assert wider.way == "refitted"
    assert wider.certificate.pairs >= found.certificate.pairs


def test_a_tie_between_equal_values_does_no_harm(s3):
    """Before the first letter all slots hold zero, so it does not matter which one is copied."""
    model, task = s3
    tied = copy.deepcopy(model)
    mixer = tied.blocks[0].mixer
    n, m, columns = mixer.gate_shape
    inputs = tied.blocks[0].mixer_norm(tied.embedding.weight).double()
    gates = (inputs @ mixer.W_g.weight.double().T).view(-1, n, m, columns).detach()
    gates[-1, :, 1, :-1] = 5.0  # at BOS, the second row copies any slot instead of loading zero
    gates[-1, :, 1, -1] = -5.0
    with torch.no_grad():
        mixer.W_g.weight.copy_((torch.linalg.pinv(inputs) @ gates.flatten(1)).T)
    found = certify(refit(tied, task.automaton), task.automaton)
    assert found.holds, found
    assert found.gate_slack > 1
