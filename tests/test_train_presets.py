"""Configs of runs: ids, errors, and presets."""

import json
import math
from dataclasses import replace

import pytest
from runs import SMALL

from statemix.commands.train import Train
from statemix.models import ModelConfig
from statemix.runs.trackers import open_tracker
from statemix.tasks import find_task
from statemix.train import (
    RunConfig,
    config_from_dict,
    mad_preset,
    paper_protocol,
    sharpened_preset,
    tracking_preset,
    train,
)
from statemix.train.metrics import accuracy_by_length
from statemix.train.trained import load_trained


def test_ids_follow_the_config():
    assert SMALL.id == replace(SMALL).id
    assert (
        len(
            {
                SMALL.id,
                replace(SMALL, seed=1).id,
                replace(SMALL, model=replace(SMALL.model, bos=False)).id,
            }
        )
        == 3
    )
    again = config_from_dict(json.loads(SMALL.to_json()))
    assert again == SMALL
    assert again.id == SMALL.id


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: config_from_dict({"task": "s3", "version": 99}), "written by a newer statemix"),
        (
            lambda: config_from_dict({"task": "s3", "rate": 1}),
            "Unknown fields in the config of a run: rate",
        ),
        (
            lambda: replace(SMALL, protocol="fast"),
            "Unknown protocol 'fast'. Available: honest, paper",
        ),
        (
            lambda: replace(SMALL, optimiser="sgd"),
            "Unknown optimiser 'sgd'. Available: adamw, muon",
        ),
        (lambda: replace(SMALL, optimiser="muon", matrix_lr=0.0), "`matrix_lr` must be above zero"),
        (lambda: replace(SMALL, length=2.5), "`length` must be a whole number, got 2.5"),
        (lambda: replace(SMALL, epochs="5"), "`epochs` must be a whole number, got '5'"),
        (
            lambda: find_task("s3", {"foo": 1}),
            "Unknown option of task 's3': 'foo'. Available: none",
        ),
        (lambda: replace(SMALL, batch=0), "`batch` must be at least 1, got 0"),
        (lambda: replace(SMALL, lr=0.0), "`lr` must be above zero"),
        (lambda: replace(SMALL, curriculum=(4, 2)), "`curriculum` must list increasing lengths"),
        (lambda: replace(SMALL, curriculum=(0, 2)), "`curriculum` must list increasing lengths"),
        (lambda: replace(SMALL, warmup=-5), "`warmup` must be finite and not negative, got -5"),
        (lambda: replace(SMALL, seed=-1), "`seed` must be finite and not negative"),
        (lambda: replace(SMALL, clip=math.nan), "`clip` must be a number, got nan"),
        (lambda: replace(SMALL, weight_decay=math.nan), "`weight_decay` must be a number, got nan"),
        (lambda: replace(SMALL, solved=math.nan), "`solved` must be a number, got nan"),
        (lambda: replace(SMALL, lr="0.1"), "`lr` must be a number, got '0.1'"),
        (lambda: replace(SMALL, lr=math.inf), "`lr` must be above zero and finite, got inf"),
        (lambda: replace(SMALL, length=0), "`length` must be at least 1, got 0"),
        (lambda: config_from_dict([1]), "The config of a run must be a JSON object"),
        (
            lambda: config_from_dict({"task": "s3", "model": {"depth": 2}}),
            "Unknown fields in the config of a run's model: depth",
        ),
        (
            lambda: find_task("copy", {"tokens": "abc"}),
            "`tokens` of task 'copy' must be of type int, got 'abc'",
        ),
        (lambda: ModelConfig(width=0), "`width` must be at least 1"),
        (
            lambda: open_tracker("mlflow", SMALL, None),
            "Unknown tracker 'mlflow'. Available: none, wandb",
        ),
    ],
)
def test_invalid_configs_raise(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_preset_checks_valid_lengths():
    assert sharpened_preset(RunConfig("s5")).hold == 256
    odd = sharpened_preset(RunConfig("mod_arith", length=9)).hold
    assert find_task("mod_arith").fits(odd)
    with pytest.raises(ValueError, match="`hold` = 64 takes effect in the decay"):
        RunConfig("s5", hold=64)


@pytest.mark.parametrize(
    ("length", "stages"),
    [(None, (2, 3, 4, 6, 9, 13)), (6, (2, 3, 4)), (40, (2, 3, 4, 6, 9, 13, 20, 30))],
)
def test_the_sharpened_preset(length, stages):
    config = sharpened_preset(replace(SMALL, length=length))
    assert config.curriculum == stages
    assert config.length == (length or 16)
    assert config.model.bos
    assert config.model.channel_mixer == "none"
    plain = paper_protocol(config)
    assert (plain.curriculum, plain.decay, plain.sharpen, plain.restart_after, plain.model.bos) == (
        (),
        0,
        1.0,
        0,
        False,
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a seed may need a dozen attempts
@pytest.mark.parametrize("seed", [1, 2])
def test_the_preset_solves_s5_and_generalises(tmp_path, seed):
    """A model trained at 16 tokens has an accuracy of at least .999 at 1,024."""
    model = ModelConfig(options={"n_blocks": 32, "block_size": 5}, width=64)
    config = sharpened_preset(RunConfig("s5", model, train_examples=100_000, epochs=50, seed=seed))
    assert train(config, tmp_path).test["token"] >= 0.9999
    _, task, trained = load_trained(tmp_path)
    assert accuracy_by_length(task, trained, (1024,), 64, 0)["1024"] >= 0.999


def test_the_tracking_preset_proves_what_can_be_proved():
    proved = tracking_preset(RunConfig("s5"))
    assert (proved.harden, proved.certify, proved.sharpen) == (True, True, 1.0)
    lstm = RunConfig("s5", ModelConfig("lstm"))
    assert tracking_preset(lstm) == sharpened_preset(lstm)


def test_new_fields_do_not_change_ids():
    """Runs in a ledger keep their ids if configs get new fields."""
    assert replace(SMALL, seed=3).id != SMALL.id
    assert replace(SMALL, model=replace(SMALL.model, width=17)).id != SMALL.id
    assert RunConfig("s3").id == "5e25aa6a9953ae91"


def test_the_mad_preset():
    """It starts the gates and the positions of the task at hand, and caps the number of steps."""
    config = mad_preset(RunConfig("compress", replace(SMALL.model, width=64)))
    assert config.model.options == {**SMALL.model.options, "init": "hold"}
    assert (config.model.width, config.model.positions, config.model.bos) == (128, "smooth", False)
    assert (config.total_steps, config.optimiser, config.cooldown) == (4000, "muon", 0.3)
    assert mad_preset(RunConfig("copy", ModelConfig("lstm"))).model.options == {}
    assert "init" not in mad_preset(RunConfig("s3", SMALL.model)).model.options
    given = Train("compress", block_size=3, blocks=4, preset="mad", batch=64, width=32).run_config()
    model = ModelConfig(options={"n_blocks": 4, "block_size": 3})
    preset = mad_preset(RunConfig("compress", model, batch=64))
    assert given == replace(preset, model=replace(preset.model, width=32))
    other = Train("compress", preset="mad", options=("init=paper",)).run_config()
    assert other.model.options["init"] == "paper"


def test_explicit_options_override_a_preset():
    given = {
        "lr": 5e-3,
        "sharpen": 1.0,
        "channel_mixer": "swiglu",
        "curriculum": (2, 4),
        "clip": 0.3,
        "warmup": 7,
        "decay": 50,
    }
    config = Train("s5", block_size=5, preset="tracking", bos=False, **given).run_config()
    assert (
        config.lr,
        config.sharpen,
        config.curriculum,
        config.clip,
        config.warmup,
        config.decay,
    ) == (5e-3, 1.0, (2, 4), 0.3, 7, 50)
    assert (config.model.channel_mixer, config.model.bos, config.restart_after) == (
        "swiglu",
        False,
        200,
    )
    preset = tracking_preset(
        RunConfig(
            "s5",
            ModelConfig("bdlru", {"n_blocks": 32, "block_size": 5}, width=64),
            clip=1.0,
            epochs=50,
        )
    )
    assert Train("s5", block_size=5, preset="tracking").run_config() == preset
    assert Train("s5", block_size=5, preset="tracking", sharpen=1.01).run_config() == replace(
        preset, sharpen=1.01
    )
    assert Train("s5", block_size=5, preset="tracking", weight_decay=0.1).run_config() == replace(
        preset, weight_decay=0.1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"mixer": "lstm", "blocks": 3},
            "--blocks are sizes of bdlru, hlru; give those of 'lstm' with --options",
        ),
        ({"matrix_lr": 0.1}, "--matrix-lr is a learning rate of --optimiser muon"),
        (
            {"protocol": "paper", "clip": 1.0, "optimiser": "muon"},
            "--protocol paper trains without --clip, --optimiser",
        ),
        ({"protocol": "paper", "preset": "tracking"}, "--protocol paper trains without --preset"),
        (
            {"protocol": "paper", "weight_decay": 0.1},
            "--protocol paper trains without --weight-decay",
        ),
    ],
)
def test_options_without_effect_raise(options, message):
    with pytest.raises(SystemExit, match=message):
        Train("s3", **options).run_config()
