"""Training: the loop, its protocols, rates and scores."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import SMALL, comparable, metrics

from statemix.layers.lookup import embed
from statemix.models import Autoencoder, ModelConfig, Tagger, build_model
from statemix.ops import Lookup
from statemix.tasks import find_task
from statemix.train import (
    RunConfig,
    finish,
    loop,
    paper_protocol,
    train,
)
from statemix.train.metrics import score
from statemix.train.state import Counters, start_run


def test_the_same_seed_gives_the_same_bits(tmp_path):
    a, b = (train(SMALL, tmp_path / name) for name in "ab")
    assert comparable(a) == comparable(b)
    assert metrics(tmp_path / "a") == metrics(tmp_path / "b")
    assert (
        metrics(tmp_path / "a")
        != (train(replace(SMALL, seed=1), tmp_path / "c"), metrics(tmp_path / "c"))[1]
    )


def test_muon_updates_the_matrices_of_blocks_and_decoder():
    model = ModelConfig(width=8, options={"n_blocks": 2, "block_size": 2})
    config = RunConfig("compress", model, length=4, optimiser="muon", matrix_lr=0.03)
    run = start_run(config)
    before = {name: p.detach().clone() for name, p in run.model.named_parameters()}
    loop.train_step(run)
    for name, p in run.model.named_parameters():
        largest = (p.detach() - before[name]).abs().max().item()
        if p.ndim == 2 and name.startswith(("blocks.", "decoder.")):
            change = torch.linalg.matrix_norm(p.detach() - before[name], 2).item()
            assert (
                0.5 < change / (config.matrix_lr * max(1, p.shape[0] / p.shape[1]) ** 0.5) < 1.3
            ), name
        else:
            assert largest <= 1.01 * config.lr, name
    adamw = replace(config, optimiser="adamw")
    assert len({config.id, adamw.id, replace(config, matrix_lr=0.02).id}) == 3
    assert RunConfig("s3").id == "5e25aa6a9953ae91"  # the id from before there was a choice


def test_the_honest_protocol_reports_the_best_validation_epoch(tmp_path):
    result = train(replace(SMALL, lr=1e-2, epochs=6), tmp_path)
    best = max(range(6), key=lambda epoch: (metrics(tmp_path)[epoch]["validation"], epoch))
    assert result.best_epoch == best
    assert result.validation["token"] == metrics(tmp_path)[best]["validation"]
    assert all(line["test"] is None for line in metrics(tmp_path))


def test_the_paper_protocol_selects_on_the_test_set(tmp_path):
    config = paper_protocol(replace(SMALL, epochs=3))
    assert not config.model.bos
    result = train(config, tmp_path)
    assert result.epochs == 3
    assert all(line["test"] is not None for line in metrics(tmp_path))


def test_a_solved_run_ends(tmp_path):
    config = replace(
        SMALL, task="parity", length=3, train_examples=512, lr=2e-2, epochs=200, solved=0.99
    )
    result = train(config, tmp_path)
    assert result.epochs < 200
    assert result.validation["token"] >= 0.99
    # There are only eight words of three bits, so the splits overlap, which is reported.
    assert result.shared_inputs > 0


def test_a_loss_that_explodes_stops_the_run(tmp_path):
    model = replace(SMALL.model, options={"n_blocks": 4, "block_size": 3, "gate": "none"})
    with pytest.raises(FloatingPointError, match=r"is (nan|inf) at step"):
        train(replace(SMALL, model=model, lr=1e9, length=40), tmp_path)


def test_learning_rate_is_a_cosine_with_warm_up():
    config = replace(SMALL, lr=1.0, min_lr=0.1, warmup=4, max_steps=14)
    rates = [loop.learning_rate(config, Counters(step)) for step in range(15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert rates[9] == pytest.approx(0.55)
    assert rates[14] == pytest.approx(0.1)


def test_learning_rate_can_stay_and_cool_down():
    config = replace(SMALL, lr=1.0, min_lr=0.1, warmup=4, max_steps=14, cooldown=0.5)
    rates = [loop.learning_rate(config, Counters(step)) for step in range(15)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4:8] == [1.0] * 4
    assert rates[8] == pytest.approx(1 - 0.9 / 7)
    assert rates[14] == pytest.approx(0.1)


def test_scores():
    accuracy = score(np.array([[0, 1, 1], [1, 1, 0]]), np.array([[0, 1, -100], [0, 1, -100]]), 2)
    assert accuracy.token == 0.75
    assert accuracy.macro == 0.75
    assert accuracy.sequence == 0.5
    assert accuracy.by_position[:2] == [0.5, 1.0]
    assert np.isnan(accuracy.by_position[2])


@pytest.mark.parametrize("bos", [False, True])
@pytest.mark.parametrize(
    ("mixer", "options"),
    [
        ("bdlru", {"n_blocks": 3, "block_size": 2}),
        ("lstm", {"hidden": 5}),
        ("deltanet", {"head_dim": 4}),
    ],
)
def test_the_tagger_steps_and_continues(mixer, options, bos):
    model = Tagger(
        ModelConfig(mixer, options, width=8, layers=2, bos=bos), vocab=5, classes=4
    ).double()
    tokens = torch.randint(5, (2, 9))
    logits, states = model(tokens)
    assert logits.shape == (2, 9, 4)
    first, between = model(tokens[:, :4])
    second, _ = model(tokens[:, 4:], between)
    torch.testing.assert_close(torch.cat([first, second], 1), logits)
    stepped, state = [], None
    for t in range(9):
        y, state = model.step(tokens[:, t], state)
        stepped.append(y)
    torch.testing.assert_close(torch.stack(stepped, 1), logits)
    assert len(states) == 2


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(
    ("mixer", "options"),
    [("bdlru", {"n_blocks": 3, "block_size": 2}), ("hlru", {"n_channels": 3, "order": 2})],
)
def test_looked_up_gates_match_projected_gates(monkeypatch, mixer, options, layers):
    config = ModelConfig(mixer, {**options, "learn_initial_state": True}, width=8, layers=layers)
    model, tokens = Tagger(config, vocab=5, classes=4).double(), torch.randint(5, (4, 9))

    def everything():
        logits, states = model(tokens)
        again, _ = model(tokens, states)
        return [
            logits,
            again,
            *states,
            *torch.autograd.grad((logits**2).sum() + again.sum(), list(model.parameters())),
        ]

    assert isinstance(embed(model.embedding, tokens, model.blocks[0].mixer), Lookup)
    looked_up = everything()
    monkeypatch.setattr("statemix.ops.dispatch.layer.FEW", 10**9)
    assert not isinstance(embed(model.embedding, tokens, model.blocks[0].mixer), Lookup)
    torch.testing.assert_close(looked_up, everything(), rtol=1e-10, atol=1e-12)


def test_the_autoencoder_has_a_fixed_number_of_positions():
    task = find_task("compress", {"vocab": 6})
    model = build_model(ModelConfig(options={"n_blocks": 4, "block_size": 2}, width=8), task, 10)
    assert isinstance(model, Autoencoder)
    tokens = torch.from_numpy(task.examples(3, 10, np.random.default_rng(0)).inputs)
    logits, _ = model(tokens)
    assert logits.shape == (3, 10, 6)
    with pytest.raises(ValueError, match="has 10 positions, got a sequence of 11"):
        model(torch.zeros(1, 11, dtype=torch.long))


def test_a_result_has_a_learning_curve(monkeypatch, tmp_path):
    monkeypatch.setattr(finish, "CURVE_POINTS", 3)
    result = train(replace(SMALL, epochs=5), tmp_path)
    reports = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    expected = [[r["step"], pytest.approx(r["validation"], abs=1e-4)] for r in reports[::2]]
    assert result.curve == expected
