"""Runs that grow their words, and runs that end with a proof."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from statemix.analysis.automata import smallest_block
from statemix.models import ModelConfig
from statemix.proof import prove, verify_certificate
from statemix.tasks import find_task
from statemix.train import RunConfig, aids, tracking_preset, train
from statemix.train.batches import next_batch
from statemix.train.loop import read_result, train_step
from statemix.train.state import start_run

HARD = ModelConfig(
    "bdlru",
    {"n_blocks": 4, "block_size": 2, "gate": "hardmax"},
    width=16,
    channel_mixer="none",
)
WORDS = RunConfig(
    "parity",
    HARD,
    train_examples=2000,
    test_examples=64,
    length=12,
    curriculum=(4, 8),
    stages="words",
    stage_tokens=256,
    decay=50,
    lr=2e-2,
    min_lr=1e-4,
    warmup=10,
    clip=1.0,
    patience=0,
    epochs=60,
)
PROVED = replace(WORDS, certify=True)


def test_a_stage_of_words_has_the_words_that_end_in_it():
    run = start_run(WORDS)
    inputs, targets = next_batch(run)
    assert inputs.shape == (64, 4)
    assert (targets >= 0).any(1).all()
    lengths = (targets >= 0).int().argmax(1)
    assert sorted(lengths.unique().tolist()) == [1, 2, 3]
    run.counters = replace(run.counters, stage=2)
    inputs, targets = next_batch(run)
    assert inputs.shape == (256 // 13, 13)
    assert (targets >= 0).any(1).all()


def test_batches_of_words_depend_on_the_step_alone():
    first, again = start_run(WORDS), start_run(WORDS)
    again.counters = replace(again.counters, step=5)
    later = next_batch(again)[0]
    again.counters = replace(again.counters, step=0)
    assert torch.equal(next_batch(first)[0], next_batch(again)[0])
    assert not torch.equal(next_batch(first)[0], later)


def test_a_stage_that_no_word_fits_is_named():
    run = start_run(replace(WORDS, task="s3", curriculum=(2, 4)))
    with pytest.raises(ValueError, match="No training sequence of the task 's3' ends within 2"):
        next_batch(run)


def test_a_stage_of_words_is_learned_when_all_answers_are():
    learned = aids.judge(WORDS, start_run(WORDS).counters, 0.96)
    assert learned.stage == 1
    assert aids.judge(WORDS, start_run(WORDS).counters, 0.94).stage == 0


def test_training_ends_with_a_proof(tmp_path):
    result = train(PROVED, tmp_path)
    assert result.certificate["holds"]
    assert result.certificate["way"] in ("pruned", "separated", "refitted")
    assert result.certificate["total"] == [4]
    saved = verify_certificate(tmp_path / "certificate" / "certificate.json")
    assert saved.task == "parity"
    assert (tmp_path / "certificate" / "automaton.svg").is_file()
    assert read_result(PROVED, tmp_path) == result
    words = np.random.default_rng(0).integers(0, 2, (4, 3000))
    words[:, -1] = 2
    with torch.no_grad():
        answers = saved.model(torch.from_numpy(words))[0][:, -1].argmax(-1).numpy()
    np.testing.assert_array_equal(answers, words[:, :-1].sum(1) % 2)


def test_a_run_restarts_until_its_proof_holds(tmp_path, monkeypatch):
    """The first proof is made to fail, so the second attempt is the one that is proved."""
    module = sys.modules["statemix.train.aids"]
    prove = module.prove
    asked = []

    def fail_once(model, automaton):
        proof = prove(model, automaton)
        asked.append(proof)
        if len(asked) == 1:
            return replace(proof, certificate=replace(proof.certificate, holds=False))
        return proof

    monkeypatch.setattr(module, "prove", fail_once)
    result = train(PROVED, tmp_path)
    assert len(asked) == result.restarts + 1 == 2
    assert result.certificate["holds"]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(PROVED, task="recall", length=20), "'recall' has none"),
        (
            replace(PROVED, model=replace(HARD, options={"n_blocks": 2, "block_size": 2})),
            "gates must be hard",
        ),
        (replace(PROVED, model=ModelConfig("lstm", {"hidden": 4})), "got a LSTM"),
    ],
)
def test_runs_that_can_never_be_proved_do_not_start(config, message):
    with pytest.raises(ValueError, match=message):
        start_run(config)


def test_a_proof_needs_a_decay():
    with pytest.raises(ValueError, match="`certify` = True takes effect in the decay"):
        RunConfig("s3", certify=True)


def test_the_preset_grows_words_where_the_answer_comes_once():
    once = tracking_preset(RunConfig("mod_arith"))
    assert (once.stages, once.length, once.harden, once.certify) == ("words", 39, False, True)
    assert once.model.options["gate"] == "hardmax"
    always = tracking_preset(RunConfig("s5"))
    assert (always.stages, always.length, always.harden) == ("prefixes", 16, True)
    assert always.certify


def test_models_below_the_smallest_block_are_not_proved():
    """No blocks of one slot carry parity, however long they train."""
    assert smallest_block(find_task("parity").automaton).lower == 2
    model = replace(HARD, options={**HARD.options, "block_size": 1})
    run = start_run(replace(PROVED, model=model))
    for step in range(60):
        run.counters = replace(run.counters, step=step, attempt_step=step)
        train_step(run)
    proof = prove(run.model, run.task.automaton)
    assert not proof.certificate.holds
    word = proof.certificate.counterexample
    with torch.no_grad():
        answer = int(proof.model(torch.tensor([word]))[0][0, -1].argmax())
    assert answer != sum(word[:-1]) % 2
