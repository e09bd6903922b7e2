"""Proofs about several layers: what makes a trained model small enough for a walk to close."""

import copy
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from statemix.models import ModelConfig, Tagger
from statemix.proof import certify, prove
from statemix.proof.blocks import live_blocks, mixers_of
from statemix.proof.deep import columns, fold_bos, remove_blocks, shut_inputs, silence
from statemix.proof.gates import LEAD, move_apart, move_gates_apart
from statemix.proof.mistakes import train_on_mistakes
from statemix.proof.moves import group_of, moves_above
from statemix.proof.picture import draw_automaton
from statemix.proof.step import initial_states, step
from statemix.proof.walk import walk
from statemix.proof.words import answers_all, random_words, right
from statemix.tasks import IGNORE, find_task
from statemix.tasks.automaton import NO_STEP

PARITY = find_task("parity").automaton
ARITHMETIC = find_task("mod_arith").automaton


def two_layers(vocab, classes, *, seed=0, blocks=3, width=12):
    torch.manual_seed(seed)
    options = {"n_blocks": blocks, "block_size": 2, "gate": "hardmax"}
    config = ModelConfig("bdlru", options, width=width, layers=2, channel_mixer="none")
    return Tagger(config, vocab, classes)


@pytest.fixture(scope="module")
def trained():
    """Two layers that answer parity on short words."""
    model = two_layers(3, 2)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.0)
    for number in range(300):
        words, answers = random_words(PARITY, 64, 3 + number // 25, [number])
        loss = F.cross_entropy(model(words)[0].flatten(0, 1), answers.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    assert right(model, *random_words(PARITY, 128, 65, [0])) == 1.0
    return model.eval()


@pytest.fixture(scope="module")
def proved(trained):
    """The proof about these layers, and what was said on the way."""
    said = []
    return prove(trained, PARITY, observe=said.append), said


def test_a_trained_model_of_two_layers_is_proved(proved):
    proof, said = proved
    assert proof.certificate.holds, proof
    assert proof.way == "retrained"
    assert proof.total == (3, 3)
    assert sum(proof.certificate.blocks) < 6
    assert any("mistakes" in text for text in said)
    words, answers = random_words(PARITY, 32, 2000, [1])
    assert answers_all(proof.model, words, answers)


def test_a_proof_is_a_function_of_the_weights(trained, proved):
    first, second = proved[0], prove(trained, PARITY)
    assert first.certificate == second.certificate
    for name, x in first.model.state_dict().items():
        assert torch.equal(x, second.model.state_dict()[name])


@pytest.mark.parametrize("automaton", [PARITY, ARITHMETIC, find_task("s3").automaton])
def test_random_words_are_words_and_their_answers_those_of_the_task(automaton):
    words, answers = random_words(automaton, 64, 21, [5])
    np.testing.assert_array_equal(automaton.solve(words.numpy()), answers.numpy())
    assert (answers != IGNORE).any(1).all()
    for word, asked in zip(words.tolist(), answers.tolist(), strict=True):
        q = automaton.start
        for letter, answer in zip(word, asked, strict=True):
            if q == NO_STEP:
                assert answer == IGNORE
            else:
                assert automaton.step[q, letter] != NO_STEP or answer != IGNORE
                q = automaton.step[q, letter]
    again, _ = random_words(automaton, 64, 21, [5])
    assert torch.equal(words, again)


def test_random_words_end_at_many_lengths():
    _, answers = random_words(ARITHMETIC, 256, 21, [5])
    ends = (answers != IGNORE).int().argmax(1)
    assert len(ends.unique()) >= 8
    assert ends.min() == 1


def test_folding_bos_changes_no_logit(trained):
    folded = fold_bos(trained)
    assert not folded.config.bos
    words = torch.randint(3, (5, 30))
    torch.testing.assert_close(folded(words)[0], trained(words)[0], rtol=1e-5, atol=1e-5)


def test_shut_layers_never_load(trained):
    shut = shut_inputs(fold_bos(trained))
    states = initial_states(shut)
    allowed = [set(block.tolist()) for block in states[1][0]]
    for letter in (0, 1, 1, 0, 2, 1):
        silent = [torch.zeros_like(h[0]) for h in states]
        states = step(shut, torch.tensor([letter]), states, silent, 0.0).states
        assert all(
            set(block.tolist()) <= was for block, was in zip(states[1][0], allowed, strict=True)
        )


def test_removing_blocks_keeps_every_answer(trained):
    small = remove_blocks(trained, PARITY)
    blocks = sum(int(live_blocks(mixer).sum()) for mixer in mixers_of(small))
    assert blocks < len(columns(trained))
    assert answers_all(small, *random_words(PARITY, 128, 65, [0]))


def test_a_silent_block_is_not_seen(trained):
    quiet = silence(trained, 1, 2)
    assert live_blocks(mixers_of(quiet)[1]).tolist() == [True, True, False]
    assert live_blocks(mixers_of(trained)[1]).all()


def test_near_ties_are_moved_apart_and_no_choice_changes():
    torch.manual_seed(1)
    model = two_layers(40, 2, blocks=5)
    mixer = mixers_of(model)[0]
    x = torch.randn(41, 12).double()
    raw = lambda: (x.float() @ mixer.W_g.weight.T + mixer.W_g.bias).view(41, -1, 3).detach()  # noqa: E731
    before = raw()
    lead = lambda gates: gates.topk(2, -1).values.diff(dim=-1).abs()  # noqa: E731
    close = int((lead(before) < LEAD).sum())
    assert close > 10
    assert move_apart(mixer, x, LEAD) == close
    assert lead(raw()).min() > 0.99 * LEAD
    assert torch.equal(raw().argmax(-1), before.argmax(-1))
    assert move_apart(mixer, x, LEAD) == 0


def test_moving_gates_apart_makes_a_certificate_hold():
    """A model that is right, but two of whose gates differ by less than rounding errors."""
    model = fold_bos(prove_parity())
    assert certify(model, PARITY).holds
    mixer = mixers_of(model)[0]
    tied = copy.deepcopy(model)
    W_g = mixers_of(tied)[0].W_g
    with torch.no_grad():
        W_g.weight.mul_(1e-7)
        W_g.bias.mul_(1e-7).add_(1.0)
    failed = certify(tied, PARITY)
    assert not failed.holds
    assert "Two gates" in failed.reason
    apart = move_gates_apart(tied, walk(tied, PARITY, 100), PARITY)
    held = certify(apart, PARITY)
    assert held.holds
    assert held.gate_slack > LEAD / 2
    assert mixer.gate == "hardmax"


_PROVED = {}


def prove_parity():
    """One layer that is trained and proved, made once."""
    if not _PROVED:
        torch.manual_seed(0)
        options = {"n_blocks": 2, "block_size": 2, "gate": "hardmax"}
        model = Tagger(ModelConfig("bdlru", options, width=8, channel_mixer="none"), 3, 2)
        assert train_on_mistakes(model, PARITY, lr=2e-2)
        _PROVED["model"] = model
    return _PROVED["model"]


def test_training_on_mistakes_ends_when_a_walk_finds_none():
    model = prove_parity()
    found = certify(model, PARITY)
    assert found.counterexample is None
    assert found.margin >= 0.5


def test_upper_layers_are_drawn_with_every_move_that_occurs(proved):
    proof, _ = proved
    moves = moves_above(proof.model, PARITY)
    assert len(moves) == proof.certificate.blocks[1]
    for own in moves.values():
        assert all(max(move) < 2 for move in own)  # no slot loads
    root = ElementTree.fromstring(draw_automaton(proof.model, "parity", PARITY, ("0", "1", "end")))
    texts = [text.text for text in root.iter() if text.tag.endswith("text")]
    assert sum("of layer 1" in text for text in texts) == proof.certificate.blocks[0]
    assert sum("of layer 2" in text for text in texts) == proof.certificate.blocks[1]
    assert any("end" in text for text in texts)


@pytest.mark.parametrize(
    ("moves", "said"),
    [
        ([(1, 2, 3, 4, 0), (0, 1, 2, 3, 4)], "2 are permutations, which generate a group of 5."),
        ([(1, 0, 2), (0, 2, 1), (3, 3, 0)], "2 are permutations, which generate a group of 6."),
        ([(0, 0), (2, 2)], ""),
    ],
)
def test_the_group_of_moves(moves, said):
    assert group_of(moves) == said
