"""Every example runs from the top to the bottom."""

import runpy
import sys
from pathlib import Path

import pytest
from documents import as_new_process

from statemix.cli import main

EXAMPLES = Path(__file__).parents[1] / "examples"
SHORTER = {
    "certified_s5.py": ["--tokens", "120000"],
    "hugging_face.py": ["--steps", "3"],
    "onnx_decode.py": ["--tokens", "20"],
    "packed_documents.py": ["--steps", "3"],
    "parity.py": ["--steps", "200"],
    "sweep_own_mixer.py": ["--limit", "1", "--workers", "1"],
    "tagger.py": ["--steps", "60"],
}


pytestmark = pytest.mark.usefixtures("unchecked")  # as for a user


def run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *SHORTER[name]])
    with as_new_process():
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SHORTER)


def test_parity(monkeypatch, capsys):
    run("parity.py", monkeypatch)
    assert "sharpened: at 4,096 1.0000" in capsys.readouterr().out


def test_tagger(monkeypatch, capsys):
    run("tagger.py", monkeypatch)
    accuracy = float(capsys.readouterr().out.split("up to 24 tokens ")[1].split(",")[0])
    assert accuracy > 0.9


def test_packed_documents(monkeypatch, capsys):
    run("packed_documents.py", monkeypatch)
    assert "loss of four documents" in capsys.readouterr().out


def test_hugging_face(monkeypatch, capsys):
    pytest.importorskip("transformers", reason="transformers is only in the extra `hf`")
    run("hugging_face.py", monkeypatch)
    assert "the same tokens: True" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore")  # torch's exporter uses what torch deprecates
def test_onnx_decode(monkeypatch, capsys):
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason=f"{package} is only in the extra `onnx`")
    run("onnx_decode.py", monkeypatch)
    assert "onnxruntime gives the same tokens: True" in capsys.readouterr().out


def test_certified_s5(monkeypatch, capsys):
    run("certified_s5.py", monkeypatch)
    assert "120,000 tokens read, 0 wrong answers" in capsys.readouterr().out


def test_sweep_own_mixer(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    path = EXAMPLES / "sweep_own_mixer.py"
    with as_new_process():
        main(["sweep", str(path), "--ledger", "mine.jsonl", *SHORTER[path.name]])
    assert "leaky_sum" in capsys.readouterr().out
