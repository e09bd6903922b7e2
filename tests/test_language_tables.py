"""Tables of language-model experiments: equal minutes, and stories."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from statemix.commands.views.report import update_documents
from statemix.lm.result import LMResult
from statemix.report.minutes import minutes_table
from statemix.report.precision import precision_table
from statemix.report.stories import stories_figure, stories_table
from statemix.sweep import load_places
from statemix.sweep.ledger import Ledger, make_entry
from statemix.train import RunResult

ROOT = Path(__file__).parent.parent
MINUTES = ROOT / "experiments" / "equal_minutes.py"
STORIES = ROOT / "experiments" / "stories.py"
PRECISION = ROOT / "experiments" / "low_precision.py"


@pytest.fixture
def ledger(tmp_path):
    (tmp_path / "bench").mkdir()
    lines = (ROOT / "results" / "bench" / "equal_minutes.jsonl").read_text()
    (tmp_path / "bench" / "equal_minutes.jsonl").write_text(lines)
    return Ledger(tmp_path / "ledger.jsonl")


def result_of(config, bits=1.0, **more):
    """The result of a finished run."""
    numbers = (config.steps, config.steps * config.tokens, 1, 1.0, 1.0, 2.7, bits, 1.0)
    return {**asdict(LMResult(config.id, *numbers)), "cpu_seconds": 1.0, **more}


def rows_of(table):
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_the_best_rate_of_the_longest_runs_is_shown(ledger, monkeypatch):
    trials = [cell for cell in load_places(MINUTES, "paper") if cell.row == "2m-lstm"][:3]
    assert [cell.column for cell in trials] == ["3 min"] * 3
    for cell, bits in zip(trials, (2.0, 1.5, 1.75), strict=True):
        ledger.append(make_entry(cell.config, result_of(cell.config, bits), None))
    found = {row[0]: row for row in rows_of(minutes_table(MINUTES, ledger.path))}
    best = trials[1].config
    tokens = f"{best.steps * best.tokens / 1e6:.2f}"
    assert found["2m-lstm"][4:] == ["3", tokens, f"{best.lr:g}", "1", "1.5000"]
    assert found["2m-hybrid"][4:] == ["–"] * 5
    assert len(found) == 15


def test_runs_of_ten_minutes_follow_at_the_best_rate(ledger, tmp_path):
    """Once the ledger has all trials of a model, its long runs are planned, and shown."""
    own = tmp_path / "experiments" / "equal_minutes.py"
    own.parent.mkdir()
    own.write_text(MINUTES.read_text())
    results = tmp_path / "results"
    results.mkdir()
    (results / "bench").symlink_to(tmp_path / "bench")
    ledger = Ledger(results / "ledger.jsonl")
    trials = [cell for cell in load_places(own, "paper") if cell.row == "2m-lstm"]
    for cell, bits in zip(trials, (2.0, 1.5, 1.75), strict=True):
        ledger.append(make_entry(cell.config, result_of(cell.config, bits), None))
    long = [cell for cell in load_places(own, "paper") if cell.row.endswith("lstm")][3:]
    assert [(c.row, c.column) for c in long] == [("2m-lstm", "10 min")] * 3 + [
        ("8m-lstm", "30 min")
    ]
    assert {cell.config.lr for cell in long} == {trials[1].config.lr}
    assert [cell.config.seed for cell in long] == [0, 1, 2, 0]
    for cell, bits in zip(long[:3], (1.0, 1.2, 1.4), strict=True):
        ledger.append(make_entry(cell.config, result_of(cell.config, bits), None))
    found = {row[0]: row for row in rows_of(minutes_table(own, ledger.path))}
    assert found["2m-lstm"][4] == "10"
    assert found["2m-lstm"][7:] == ["3", "1.2000 ± 0.2000"]


def test_stories_are_shown_by_model_and_kind(ledger, tmp_path):
    cells = [c for c in load_places(STORIES) if c.column == "swaps" and c.row == "LSTM"]
    assert len(cells) == 3
    for cell, last in zip(cells, (1.0, 0.5, 0.9), strict=True):
        measured = {"accuracy": {"1": 1.0, "64": last}}
        ledger.append(make_entry(cell.config, result_of(cell.config, measured=measured), None))
    other = next(c for c in load_places(STORIES) if (c.row, c.column) == ("H-LRU m = 3", "light"))
    measured = {"accuracy": {"1": 0.25}}
    ledger.append(make_entry(other.config, result_of(other.config, measured=measured), None))
    assert sorted(rows_of(stories_table(STORIES, ledger.path))) == [
        ["H-LRU m = 3", "light", "1", "0.250", "–"],
        ["LSTM", "swaps", "3", "1.000 (1.000)", "0.800 (0.500)"],
    ]
    document = tmp_path / "page.md"
    document.write_text("<!-- stories -->\n<!-- end -->\n<!-- equal minutes -->\n<!-- end -->\n")
    update_documents(ROOT / "experiments", ledger.path, (document,))
    text = document.read_text()
    assert "0.800 (0.500)" in text
    assert "2m-hybrid" in text
    figure = stories_figure(STORIES, ledger.path)
    assert [chart.title for chart in figure.charts] == ["swaps", "light"]
    ((first, last),) = (series.points for series in figure.charts[0].series)
    assert (first.x, first.y, last.x, last.low, last.high) == (2, 1.0, 65, 0.5, 1.0)


def test_the_page_about_stories_has_a_picture(ledger, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="figures are drawn by matplotlib, of the extra `plot`")
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import render_stories

    picture = tmp_path / "stories.svg"
    with pytest.raises(SystemExit, match="has no run of experiments/stories.py"):
        render_stories.main(ledger.path, picture)
    cell = next(iter(load_places(STORIES)))
    measured = {"accuracy": {"1": 1.0, "64": 0.5}}
    ledger.append(make_entry(cell.config, result_of(cell.config, measured=measured), None))
    render_stories.main(ledger.path, picture)
    first = picture.read_text()
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert "Stories whose answer is a state" in first
    render_stories.main(ledger.path, picture)
    assert picture.read_text() == first


def test_precisions_are_shown_side_by_side(ledger):
    assert "no run of `experiments/low_precision.py` yet" in precision_table(PRECISION, ledger.path)
    cells = [cell for cell in load_places(PRECISION) if cell.column in ("s3", "text")]
    assert len(cells) == 12
    for number, cell in enumerate(cells):
        if cell.column == "text":
            result = {**result_of(cell.config), "perplexity": 10.0 + number}
        else:
            accuracy = {"token": 1.0, "sequence": 1.0, "macro": 1.0}
            numbers = (cell.config.id, 500, 1, 1, 0, 1000, 1.0, accuracy, accuracy, 0, 1.0, 1.0)
            found = RunResult(*numbers, certificate={"holds": True} if number else None)
            curve = {"41": 1.0, "1025": 1 - number / 10}
            result = {**asdict(found), "measured": {"by_length": curve}}
        ledger.append(make_entry(cell.config, result, None))
    assert rows_of(precision_table(PRECISION, ledger.path)) == [
        ["2m-bdlru-m4", "text", "bf16", "3", "perplexity 20.00 ± 1.00"],
        ["2m-bdlru-m4", "text", "float32", "3", "perplexity 14.00 ± 1.00"],
        ["BD-LRU m3", "s3", "bf16", "3", "3 of 3 proved, 0.200 at 1025, 500 steps"],
        ["BD-LRU m3", "s3", "float32", "3", "2 of 3 proved, 0.800 at 1025, 500 steps"],
    ]


def test_nothing_is_drawn_without_runs(ledger, tmp_path):
    assert stories_figure(STORIES, ledger.path) is None
    assert "no run of `experiments/stories.py` yet" in stories_table(STORIES, ledger.path)
    assert stories_figure(tmp_path / "missing.py", ledger.path) is None


def test_every_cell_has_an_id_of_its_own():
    for path in (MINUTES, STORIES):
        ids = [cell.config.id for cell in load_places(path)]
        assert len(set(ids)) == len(ids)
    config = next(iter(load_places(STORIES))).config
    assert replace(config, order="shuffled").id != config.id
    assert json.loads(config.to_json())["sharpen"] == 1.004
