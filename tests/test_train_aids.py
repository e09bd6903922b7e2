"""Training aids: curriculum, restarts, the decay and the held-out check."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from runs import DECAYING, HELD, SMALL, comparable, interrupt_at, metrics
from torch import nn

from statemix.commands.views.train import print_result, run_training
from statemix.models import build_model
from statemix.tasks import IGNORE, Examples, find_task
from statemix.train import (
    aids,
    loop,
    sequences,
    train,
)
from statemix.train import metrics as train_metrics
from statemix.train.metrics import accuracy_by_length, all_end_right
from statemix.train.state import Counters, start_run
from statemix.train.trained import load_trained


def test_a_curriculum_without_targets_raises(tmp_path):
    with pytest.raises(ValueError, match="The task 'copy' scores none of the first 4 positions"):
        train(replace(SMALL, task="copy", length=40, curriculum=(4,)), tmp_path)


def test_a_curriculum_grows(tmp_path):
    config = replace(
        SMALL,
        task="s2",
        curriculum=(2, 4),
        lr=2e-2,
        epochs=120,
        length=6,
        train_examples=1024,
        solved=2.0,
        patience=0,
    )
    train(config, tmp_path)
    lengths = [line["length"] for line in metrics(tmp_path)]
    assert lengths[0] == 2
    assert lengths[-1] == 6
    assert lengths == sorted(lengths)


def test_restarts_use_new_weights(tmp_path):
    result = train(replace(SMALL, restart_after=50, epochs=40, lr=1e-5), tmp_path)
    assert result.restarts >= 2


def test_the_decay_starts_once_sequences_are_learned_and_ends_the_run(tmp_path):
    """Once sequences are learned, the rate falls linearly to `min_lr` while gates are sharpened."""
    config = DECAYING
    result = train(config, tmp_path)
    lines = metrics(tmp_path)
    assert result.steps < 400 * 4
    assert result.test["token"] == 1.0
    assert lines[-1]["lr"] == pytest.approx(config.min_lr)
    assert max(line["lr"] for line in lines) == config.lr
    decaying = [line for line in lines if line["lr"] < config.lr and line["step"] > config.warmup]
    assert 50 // 4 - 1 <= len(decaying) <= 50 // 4 + 2
    blunt = train(replace(config, sharpen=1.0), tmp_path / "blunt")
    assert blunt.steps == result.steps  # the runs are the same until the decay
    norms = [
        load_trained(place)[2].blocks[0].mixer.W_g.weight.norm().item()
        for place in (tmp_path, tmp_path / "blunt")
    ]
    assert norms[0] > 1.3 * norms[1]


def test_gates_become_hard_in_the_decay_and_stay_so(tmp_path, monkeypatch):
    """The selected weights are evaluated, saved and loaded as those of a model that copies."""
    config = replace(HELD, sharpen=1.0, harden=True)
    result = train(config, tmp_path / "unbroken")
    assert result.held
    assert result.test["token"] == 1.0
    _, task, model = load_trained(tmp_path / "unbroken")
    assert model.blocks[0].mixer.gate == "hardmax"
    by_length = accuracy_by_length(task, model, [6, 400], 32, 0)
    assert by_length == {"6": 1.0, "400": 1.0}
    stop = len(metrics(tmp_path / "unbroken")) - 5  # within the decay
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "cut", observer=interrupt_at(stop))
    resumed = train(config, tmp_path / "cut")
    assert comparable(resumed) == comparable(result)
    soft = train(replace(config, max_steps=8), tmp_path / "soft")
    assert not soft.held
    assert load_trained(tmp_path / "soft")[2].blocks[0].mixer.gate == "softmax"


def test_hard_gates_need_a_decay(unchecked):
    with pytest.raises(ValueError, match="`harden` = True takes effect in the decay"):
        replace(SMALL, harden=True)


def test_mistakes_after_the_decay_restart_the_run():
    config = replace(SMALL, decay=50)
    learned = Counters(attempt_step=100, stage_step=100, decay_step=50)
    assert aids.judge(config, learned, 1.0).ended
    again = aids.judge(config, learned, 0.999)
    assert (again.attempt, again.attempt_step, again.decay_step, again.ended) == (1, 0, -1, False)
    assert (
        aids.judge(config, replace(learned, decay_step=25), 0.5).attempt == 0
    )  # the decay has not ended


def test_a_failed_held_out_check_restarts_the_run(tmp_path, monkeypatch):
    """Weights that fail the check are not chosen, even with the best validation accuracy."""
    answers, judged, real = iter([False, True]), [], loop.end_epoch
    monkeypatch.setattr(
        aids,
        "holds",
        lambda run: judged.append(copy.deepcopy(run.model.state_dict())) or next(answers),
    )

    def end_with_a_higher_accuracy(run, *args):
        if run.counters.attempt == 0:
            report = real(run, *args)
            run.counters = replace(run.counters, best_accuracy=2.0)
            return report
        return real(run, *args)

    monkeypatch.setattr(loop, "end_epoch", end_with_a_higher_accuracy)
    result = train(HELD, tmp_path)
    assert (result.restarts, result.held) == (1, True)
    chosen = load_trained(tmp_path)[2].state_dict()
    assert all(torch.equal(chosen[name], x) for name, x in judged[1].items())
    assert not all(torch.equal(chosen[name], x) for name, x in judged[0].items())


def test_the_held_out_check_uses_longer_unseen_sequences(monkeypatch):
    monkeypatch.setattr(sequences, "HELD_TOKENS", 10_000)
    run = start_run(replace(HELD, length=8))
    assert len(run.data["hold"]) == 250
    right = {
        inputs.tobytes(): targets
        for inputs, targets in zip(run.data["hold"].inputs, run.data["hold"].targets, strict=True)
    }
    assert run.data["hold"].inputs.shape[1] == 40
    assert run.data["train"].inputs.shape[1] == 8

    class Solver(nn.Module):
        def __init__(self, mistakes):
            super().__init__()
            self.mistakes = mistakes

        def forward(self, tokens):
            answers = torch.stack(
                [torch.from_numpy(right[row.numpy().tobytes()]) for row in tokens]
            )
            for row, position in self.mistakes:
                answers[row, position] += 1
            return F.one_hot(answers % run.task.classes, run.task.classes).float(), []

    # Mistakes before the last position are allowed.
    for mistakes, holds in (((), True), (((0, 20), (3, 38)), True), (((3, 39),), False)):
        run.model = Solver(mistakes)
        assert aids.holds(run) == holds
        assert run.model.training
    # The last chunk is smaller than the others; a mistake in it counts.
    monkeypatch.setattr(train_metrics, "_ROWS", 100)
    run.model = Solver(((len(run.data["hold"]) % 100 - 1, 39),))
    assert not aids.holds(run)
    run.config = replace(run.config, hold=0)
    assert aids.holds(run)


def test_the_last_answer_may_precede_the_end():
    """Shorter sequences are padded with empty tokens, which are not scored."""
    targets = np.array([[IGNORE, 1, IGNORE], [0, IGNORE, 1]])

    class FixedAnswers(nn.Module):
        def __init__(self, answers):
            super().__init__()
            self.answers = answers

        def forward(self, tokens):
            return F.one_hot(torch.tensor(self.answers), 2).float(), []

    examples = Examples(np.zeros_like(targets), targets)
    assert all_end_right(FixedAnswers([[0, 1, 0], [1, 0, 1]]), examples)
    assert not all_end_right(FixedAnswers([[1, 0, 1], [0, 0, 1]]), examples)
    assert not all_end_right(FixedAnswers([[0, 1, 0], [0, 0, 0]]), examples)


def test_a_run_without_a_passed_check_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(aids, "holds", lambda run: False)
    result = train(replace(HELD, max_steps=300), tmp_path)
    assert result.held is False
    assert train(replace(HELD, hold=0, max_steps=100), tmp_path / "not asked").held is None
    print_result(HELD, result, tmp_path)
    assert "No attempt passed the held-out check at 40 tokens" in " ".join(
        capsys.readouterr().out.split()
    )
    print_result(HELD, replace(result, held=True), tmp_path)
    assert "held-out check passed: every final answer at 40 tokens is right" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("task", "length", "hold", "message"),
    [
        ("mod_arith", 9, 40, "`hold` = 40 does not fit the task 'mod_arith'"),
        (
            "compress",
            16,
            64,
            "`hold` = 64 exceeds the 16 positions of this model. Set it to 0.",
        ),
    ],
)
def test_invalid_lengths_of_the_held_out_check_raise(tmp_path, task, length, hold, message):
    with pytest.raises(ValueError, match=message):
        run_training(
            replace(HELD, task=task, length=length, hold=hold),
            tmp_path / "runs",
            threads=1,
            resume=True,
            tracker="none",
        )
    assert not (tmp_path / "runs").exists()


def test_prefixes_longer_than_sequences_raise(tmp_path):
    with pytest.raises(
        ValueError, match="`curriculum` has prefixes of up to 9 tokens, but the sequences have 6"
    ):
        train(replace(SMALL, curriculum=(2, 4, 9)), tmp_path / "run")
    assert train(replace(SMALL, curriculum=(2, 6), epochs=1), tmp_path / "full").steps > 0


def test_restarts_count_the_steps_of_a_stage():
    config = replace(SMALL, curriculum=(2, 4), restart_after=100, warmup=50)

    def stuck(stage, steps):
        return aids.judge(config, Counters(stage=stage, stage_step=steps), 0.5).attempt

    assert (stuck(0, 125), stuck(0, 150)) == (0, 1)  # the warm-up is added to the first stage
    assert (stuck(1, 75), stuck(1, 100)) == (0, 1)
    decaying = Counters(stage=2, stage_step=500, decay_step=0)
    assert aids.judge(config, decaying, 0.5).attempt == 0  # no restart after the decay has started
    assert aids.judge(config, Counters(stage=1, stage_step=100), 0.95).stage == 2


def test_a_stage_ends_after_its_maximum_steps():
    config = replace(SMALL, curriculum=(2, 4), stage_steps=75)
    assert aids.judge(config, Counters(stage=0, stage_step=50), 0.1).stage == 0
    assert aids.judge(config, Counters(stage=0, stage_step=75), 0.1).stage == 1


def test_only_gates_that_saturate_can_be_sharpened():
    layer = build_model(
        replace(SMALL.model, options={"n_blocks": 2, "block_size": 2, "gate": "linear"}),
        find_task("s3"),
        6,
    )
    with pytest.raises(
        ValueError,
        match=r"Only gates that saturate can be sharpened "
        r"\(softmax, hardmax, sigmoid, tanh\), got 'linear'",
    ):
        aids.sharpen(layer, 1.1)
