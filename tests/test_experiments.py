"""Language models in sweeps: models of equal size, and one record per run."""

import json
from pathlib import Path

import pytest
from texts import little_data

from statemix.cli import main
from statemix.lm.step import digest
from statemix.models.lm import count_parameters
from statemix.sweep import Ledger, load_cells, load_places

pytest.importorskip(
    "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
)
SMALL = """
from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig

def cells():
    for lr in (3e-3, 1e-3):
        for seed in (0, 1):
            model = LMConfig({vocab}, width=8, layers=1, options={{"n_blocks": 2, "block_size": 2}})
            yield LMRunConfig(model, "{text}", length=8, batch=1, steps=2, lr=lr, seed=seed)
"""


@pytest.fixture
def sweep(tmp_path):
    """A command that sweeps over four small language models, and its ledger."""
    data = little_data(tmp_path / "data")
    path = tmp_path / "small.py"
    path.write_text(SMALL.format(vocab=data.meta.vocab, text=digest(data)))
    ledger = tmp_path / "ledger.jsonl"
    command = ["sweep", str(path), "--ledger", str(ledger), "--runs", str(tmp_path / "runs")]
    return [*command, "--data", str(data.directory.parent)], ledger


def test_models_of_a_panel_have_equal_numbers_of_parameters():
    cells = load_places(Path(__file__).parents[1] / "experiments" / "lm_small.py")
    assert len({cell.config.id for cell in cells}) == len(cells) == 11 * 4 + 5 * 2 + 11 * 2 + 1
    sizes = [
        count_parameters(cell.config.model)
        for cell in cells
        if cell.column == "a" and cell.config.lr == 2e-3
    ]
    assert len(sizes) == 11
    assert max(sizes) < 1.02 * min(sizes)


def test_language_models_are_recorded_once(sweep, capsys):
    command, ledger = sweep
    main([*command, "--workers", "2"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "4 runs done, 0 failed, 0 were in the ledger" in printed
    entries, complaints = Ledger(ledger).read()
    assert complaints == []
    assert {entry.id for entry in entries} == {c.id for c in load_cells(Path(command[1]))}
    assert all(entry.result["perplexity"] > 1 for entry in entries)
    assert all(entry.result["cpu_seconds"] > 0 for entry in entries)
    text = ledger.read_text()
    main(command)
    assert "0 runs done, 0 failed, 4 were in the ledger" in " ".join(
        capsys.readouterr().out.split()
    )
    assert ledger.read_text() == text


def test_the_best_learning_rate_has_the_lowest_perplexity(sweep, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    command, ledger = sweep
    main([*command, "--workers", "2"])
    capsys.readouterr()
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        better = line["config"]["lr"] == 1e-3
        line["result"]["perplexity"] = (5.0 if better else 7.0) + line["config"]["seed"]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    main(command)
    row = next(line for line in capsys.readouterr().out.splitlines() if "block_size=2" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")][4:] == [
        "0.001",
        "2",
        "5.500",
        "0.707",
        "5.000",
    ]


def test_a_missing_text_fails_with_advice(sweep, tmp_path, capfd):
    command, ledger = sweep
    with pytest.raises(SystemExit):
        main([*command[:-1], str(tmp_path / "nowhere"), "--limit", "1"])
    (entry,) = Ledger(ledger).read()[0]
    assert "nowhere holds the prepared text" in entry.reason
    assert "Prepare it with `statemix lm prepare`" in entry.reason
    assert "statemix lm prepare" in " ".join(capfd.readouterr().err.split())
