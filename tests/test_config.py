"""Configs: ids that never change, ranges of values, and help texts."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from statemix.commands.lm_train import LMTrain
from statemix.commands.train import Train
from statemix.config.fields import field_help
from statemix.config.lm import Execution, LMRunConfig, run_config_from_dict
from statemix.config.model import LMConfig, ModelConfig
from statemix.config.presets import (
    paper_protocol,
    paper_sizes,
    sharpened_preset,
    tracking_preset,
)
from statemix.config.task import (
    RunConfig,
    config_from_dict,
)

LEDGER = Path(__file__).parents[1] / "results" / "ledger.jsonl"
CONFIGS = (ModelConfig, LMConfig, RunConfig, LMRunConfig, Execution)


def test_ids_in_the_ledger_match_their_configs():
    entries = [json.loads(line) for line in LEDGER.read_text().splitlines()]
    assert len(entries) > 1000
    for entry in entries:
        read = config_from_dict if "task" in entry["config"] else run_config_from_dict
        config = read(entry["config"])
        assert config.id == entry["id"]
        assert read(json.loads(config.to_json())) == config


def test_the_command_line_and_python_describe_the_same_run():
    assert Train("s3").run_config() == RunConfig("s3")
    assert Train("s3").run_config().id == "5e25aa6a9953ae91"
    tracking = Train("s5", preset="tracking").run_config()
    assert tracking == tracking_preset(RunConfig("s5"))
    sharpened = Train("s5", preset="sharpened").run_config()
    assert sharpened == sharpened_preset(RunConfig("s5"))
    paper = Train("s3", protocol="paper").run_config()
    assert paper == paper_protocol(paper_sizes(RunConfig("s3")))
    assert (paper.model.width, paper.epochs, paper.lr, paper.model.bos) == (128, 200, 1e-3, False)
    shorter = Train("s3", protocol="paper", epochs=3, width=64).run_config()
    assert (shorter.epochs, shorter.model.width) == (3, 64)


def test_the_command_line_has_the_defaults_of_language_models():
    assert LMTrain(Path("data")).execution() == Execution()
    missing = {f.name for f in fields(LMRunConfig)} - {f.name for f in fields(LMTrain)}
    assert missing == {"model", "version"}


@pytest.mark.parametrize("config", CONFIGS)
def test_every_field_has_a_help_text(config):
    assert set(field_help(config)) >= {f.name for f in fields(config)}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunConfig("s3", lr=0.0), "`lr` must be above zero and finite, got 0.0"),
        (lambda: RunConfig("s3", batch=2.5), "`batch` must be a whole number, got 2.5"),
        (lambda: RunConfig("s3", warmup=-1), "`warmup` must be finite and not negative, got -1"),
        (
            lambda: RunConfig("s3", optimiser="sgd"),
            "Unknown optimiser 'sgd'. Available: adamw, muon",
        ),
        (lambda: ModelConfig(bos="no"), "`bos` must be true or false, got 'no'"),
        (lambda: LMConfig(10, inner=0), "`inner` must be at least 1, got 0"),
        (lambda: LMRunConfig(LMConfig(10), "", beta1=1.0), r"`beta1` must be in \[0, 1\), got 1.0"),
        (lambda: Execution(parallel="ring"), "Unknown parallel 'ring'. Available: ddp, fsdp"),
    ],
)
def test_values_out_of_range_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_warm_up_is_a_number_of_steps_or_a_fraction():
    assert RunConfig("s3", warmup=100).warmup_steps(1000) == 100
    assert RunConfig("s3", warmup=0.05).warmup_steps(1000) == 50
    assert LMRunConfig(LMConfig(10), "", warmup=30).warmup_steps(1000) == 30


def test_help_does_not_import_torch():
    code = "import sys; import statemix.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: RunConfig("s3", mixer="lstm"),
            "RunConfig has no field `mixer`. Write model=ModelConfig(mixer=...).",
        ),
        (
            lambda: RunConfig("s3", learning_rate=1e-3),
            "RunConfig has no field `learning_rate`. Available: task_options, length,",
        ),
        (
            lambda: RunConfig("s3", epoch=3),
            "RunConfig has no field `epoch`. Did you mean `epochs`?",
        ),
        (
            lambda: ModelConfig(block_size=3),
            "Write options={'block_size': ...} if it is an option of the mixer.",
        ),
        (lambda: RunConfig("s3", "lstm"), "`model` must be a ModelConfig, got 'lstm'."),
        (
            lambda: ModelConfig("lstm", 64),
            "`options` must map names of options to values, such as {'n_blocks': 8}, got 64.",
        ),
        (lambda: RunConfig(7), "`task` must be a name, got 7."),
    ],
)
def test_a_wrong_argument_is_explained(build, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        build()
