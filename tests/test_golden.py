"""Golden files of every version load to the same outputs, and interrupted runs end as they did.

`python tests/write_golden.py` writes those of a new version.
"""

import json
import shutil
from dataclasses import asdict

import pytest
import torch
from write_golden import GOLDEN, data_outputs, lm_outputs, run_outputs

from statemix.cli import main
from statemix.config.task import config_from_dict
from statemix.lm.saved import load_model
from statemix.sweep import Ledger
from statemix.train import train

VERSIONS = sorted(path for path in GOLDEN.iterdir() if path.is_dir())
LIMIT = 500_000  # bytes
SHARES = ("train", "validation", "test")


@pytest.fixture(params=VERSIONS, ids=lambda path: path.name)
def golden(request):
    return request.param


@pytest.fixture
def expected(golden):
    return json.loads((golden / "outputs.json").read_text())


def agree(found, logits):
    """Logits agree up to the rounding of another processor."""
    torch.testing.assert_close(torch.tensor(found), torch.tensor(logits), rtol=1e-4, atol=1e-5)


def test_a_run(golden, expected):
    found = run_outputs(golden / "run")
    assert found["id"] == expected["run"]["id"]
    agree(found["logits"], expected["run"]["logits"])


def test_a_finished_run_is_not_trained_again(golden, tmp_path):
    shutil.copytree(golden / "run", tmp_path / "run")
    config = config_from_dict(json.loads((golden / "run" / "config.json").read_text()))
    known = json.loads((golden / "run" / "result.json").read_text())
    assert json.loads(json.dumps(asdict(train(config, tmp_path / "run")))) == known


def test_an_interrupted_run_ends_as_the_finished_one(golden, expected, tmp_path):
    shutil.copytree(golden / "interrupted", tmp_path / "run")
    config = config_from_dict(json.loads((golden / "run" / "config.json").read_text()))
    result = train(config, tmp_path / "run")
    known = json.loads((golden / "run" / "result.json").read_text())
    assert result.steps == known["steps"]
    assert result.best_epoch == known["best_epoch"]
    assert {name: getattr(result, name) for name in SHARES} == {
        name: known[name] for name in SHARES
    }
    agree(run_outputs(tmp_path / "run")["logits"], expected["run"]["logits"])


def test_a_prepared_text(golden, expected):
    pytest.importorskip("tokenizers", reason="text needs the extra `lm`")
    assert data_outputs(golden / "data") == expected["data"]


def test_a_language_model(golden, expected):
    agree(lm_outputs(load_model(golden / "lm" / "final").model), expected["lm"])


def resume(golden, directory):
    """Train the interrupted run of a language model in `directory` to its end."""
    shutil.copytree(golden / "lm", directory)
    shutil.rmtree(directory / "checkpoints" / "step-00000012")
    shutil.rmtree(directory / "final")
    (directory / "result.json").unlink()
    config = json.loads((golden / "lm" / "config.json").read_text())
    model = config["model"]
    sizes = [f"{key}={value}" for key, value in model["options"].items()]
    options = ["--width", model["width"], "--layers", model["layers"], "--options", *sizes]
    options += ["--length", config["length"], "--batch", config["batch"], "--tie"]
    options += ["--steps", config["steps"], "--save-every", 100, "--peak-tflops", 1]
    call = ["lm", "train", golden / "data", "--out", directory, "--preset", "180k-bdlru-m4"]
    return [str(word) for word in call + options]


@pytest.mark.filterwarnings("ignore")  # of torch.distributed
def test_a_language_model_resumes_from_its_checkpoint(golden, expected, tmp_path, capsys):
    main(resume(golden, tmp_path / "lm"))
    steps = [json.loads(line) for line in (tmp_path / "lm" / "metrics.jsonl").open()]
    old = [json.loads(line) for line in (golden / "lm" / "metrics.jsonl").open()]
    assert [line for line in steps if line["step"] <= 8] == [
        line for line in old if line["step"] <= 8
    ]
    agree(lm_outputs(load_model(tmp_path / "lm" / "final").model), expected["lm"])


@pytest.mark.filterwarnings("ignore")  # of torch.distributed
@pytest.mark.parametrize("hashed", [True, False])
def test_a_checkpoint_whose_header_has_another_dtype_is_refused(golden, tmp_path, hashed, capsys):
    words = resume(golden, tmp_path / "lm")
    step = tmp_path / "lm" / "checkpoints" / "step-00000008"
    (shard,) = step.glob("*.safetensors")
    shard.write_bytes(shard.read_bytes().replace(b'"F32"', b'"I32"'))
    if not hashed:
        state = json.loads((step / "state.json").read_text())
        (step / "state.json").write_text(json.dumps({**state, "files": {}}))
    what = "the hash of" if hashed else "tensors of the dtype I32"
    with pytest.raises(SystemExit, match=f"step-00000008 cannot be read .*{what}.* Delete it to"):
        main(words)


@pytest.mark.filterwarnings("ignore")  # of transformers and torchao
def test_an_exported_model(golden, expected):
    transformers = pytest.importorskip("transformers", reason="needs the extra `hf`")
    import statemix.hf  # noqa: F401

    model = transformers.AutoModelForCausalLM.from_pretrained(golden / "export")
    tokens = (7 * torch.arange(12) % 256)[None]
    with torch.no_grad():
        agree(model(tokens).logits[0, :, :6].double().tolist(), expected["lm"])


def test_a_ledger(golden, expected):
    entries, complaints = Ledger(golden / "ledger.jsonl").read()
    assert [[entry.id, entry.status] for entry in entries] == expected["ledger"]
    assert complaints == []


def test_golden_files_are_small(golden):
    assert sum(path.stat().st_size for path in golden.rglob("*") if path.is_file()) < LIMIT
