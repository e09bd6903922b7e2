"""Long random words beside a proof: split into parts, they are as they would be at once."""

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from test_report import entry

from statemix.cli import main
from statemix.commands.views.report import update_documents
from statemix.models import ModelConfig, Tagger
from statemix.proof import load_certificate, long_words
from statemix.proof.long_words import _Walker, run_long_words
from statemix.report.certified import CERTIFIED, certified_table
from statemix.sweep import Ledger, load_places
from statemix.tasks import find_task

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "tracking.md"
S5 = ROOT / "examples" / "models" / "s5"


def untrained(task):
    torch.manual_seed(0)
    options = {"n_blocks": 3, "block_size": 2, "gate": "hardmax"}
    model = Tagger(ModelConfig("bdlru", options, width=8, channel_mixer="none"), task.vocab, 5)
    with torch.no_grad():
        model.embedding.weight.normal_()
    return model


def test_parts_change_nothing(monkeypatch):
    task = find_task("mod_arith", {"answers": "prefixes"})
    model = untrained(task)
    words, answers = _Walker(task.automaton, 4, 0).read(50, ends=True)
    with torch.no_grad():
        predicted = model(torch.from_numpy(words))[0].argmax(-1).numpy()
    wrong = int(((predicted != answers) & (answers >= 0)).sum())
    assert wrong
    for part in (7, 50, 64):
        monkeypatch.setattr(long_words, "_PART", part)
        found = run_long_words(model, task.automaton, sequences=4, length=50)
        assert (found.answers, found.wrong) == ((answers >= 0).sum(), wrong)


@pytest.mark.parametrize(
    ("name", "options", "answers"),
    [
        ("s3", {}, 60),
        ("parity", {}, 3),
        ("parity", {"answers": "prefixes"}, 60),
        ("mod_arith", {}, 3),
        ("mod_arith", {"answers": "prefixes"}, 33),
    ],
)
def test_words_are_those_of_the_task(name, options, answers):
    """Answers are those of the automaton, the last letter asks, and all letters occur."""
    automaton = find_task(name, options).automaton
    words, found = _Walker(automaton, 3, 0).read(20, ends=True)
    np.testing.assert_array_equal(found, automaton.solve(words))
    assert (found >= 0).sum() == answers
    assert (found[:, -1] >= 0).all()
    words, _ = _Walker(automaton, 50, 1).read(20, ends=True)
    assert set(words.ravel().tolist()) == set(range(automaton.letters))


def test_the_command_counts_answers(capsys, tmp_path):
    command = ["certify", "--verify", str(S5), "--words", "4", "--length", "600"]
    main(command)
    printed = capsys.readouterr().out
    assert "4 random words of 600 tokens: 2,400 answers, none is wrong" in printed
    with pytest.raises(SystemExit, match="--words must be at least 1, got 0"):
        main([*command[:-3], "0"])
    with pytest.raises(SystemExit, match="--words needs a certificate"):
        main(["certify", str(tmp_path), "--words", "4"])


def test_wrong_answers_are_reported(capsys, monkeypatch):
    """Words find an error that a verification would have to miss."""
    saved = load_certificate(S5 / "certificate.json")
    broken = copy.deepcopy(saved.model)
    with torch.no_grad():
        broken.head.bias[0] += 100.0
    verify = "statemix.commands.views.certify.verify_certificate"
    monkeypatch.setattr(verify, lambda path: replace(saved, model=broken))
    with pytest.raises(SystemExit) as end:
        main(["certify", "--verify", str(S5), "--words", "2", "--length", "50"])
    assert end.value.code == 1
    assert "100 answers, " in (printed := capsys.readouterr().out)
    assert " are wrong" in printed


def test_the_table_of_certified_models(tmp_path):
    """Proofs, times against softmax on the same seeds, and long words of the proved models."""
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    shutil.copy(ROOT / "experiments" / "certified.py", experiments)
    cells = [cell for cell in load_places(experiments / "certified.py") if cell.column == "s5"]
    ledger = Ledger(tmp_path / "ledger.jsonl")
    proof = {"holds": True, "blocks": [2], "slack": 1.5, "pairs": 6}
    measured = {"by_length": {"41": 1.0, "1025": 0.98765}}
    own = [cell.config for cell in cells if cell.recipe == "restarts"][:3]
    for config, certificate in zip(own, (proof, proof, None), strict=True):
        add(ledger, config, 12.0, certificate, measured)
    for config in [cell.config for cell in cells if cell.recipe == "softmax"][:2]:
        add(ledger, config, 10.0, None, measured)
    size = {"answers": 1000, "wrong": 0, "sequences": 256, "length": 65536}
    longer = {**size, "sequences": 16, "length": 1_000_000}
    lines = [{**size, "run": own[0].id}, {**longer, "run": own[1].id}, {**size, "run": own[1].id}]
    (tmp_path / "long_words.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    document = tmp_path / "document.md"
    document.write_text("<!-- certified models -->\n<!-- end -->\n")
    update_documents(experiments, ledger.path, (document,))
    assert (
        "| BD-LRU m5 | s5 | 2 of 3 | 6 | 12 (12–12) | 1.20 (2 seeds) | 0.9877 "
        "| 2 × 256 × 65,536, 1 × 16 × 1,000,000 | 3,000 | 0 |" in document.read_text()
    )


def test_the_page_is_rendered_from_the_results():
    """The committed table is that of the committed runs: `statemix report --documents`."""
    table = certified_table(ROOT / "experiments" / CERTIFIED, ROOT / "results" / "ledger.jsonl")
    assert table.count("\n") > 5
    assert f"<!-- certified models -->\n{table}<!-- end -->" in PAGE.read_text()


def add(ledger, config, seconds, certificate, measured):
    found = entry(config, 1.0, 1.0, restarts=2, certificate=certificate)
    found.result.update(cpu_seconds=seconds, measured=measured)
    ledger.append(found)
