"""The report of a ledger: selection, tables, documents, and the page in a real browser."""

import csv
import json
import math
import shutil
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from browser import CONTRAST, FAULTS

import statemix
from statemix.cli import main
from statemix.commands.views.report import collect, find_experiments, update_documents
from statemix.models import ModelConfig
from statemix.paper import bdlru, mixer_of, read_values, with_row
from statemix.report.evidence import Evidence
from statemix.report.figures import make_figures
from statemix.report.gather import Measured, Neighbour, Place, gather, neighbours
from statemix.report.language import PANELS, language_figure, read_language
from statemix.report.page import write_report_page
from statemix.report.tables import coverage, facts, furthest, grids, latex, markdown
from statemix.report.throughput import throughput_figure
from statemix.sweep import Cell, Choice, Entry, Ledger, load_places
from statemix.sweep.ledger import make_entry
from statemix.train import RunConfig

EXPERIMENT = """
from statemix.models import ModelConfig
from statemix.paper import bdlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

def cells():
    for column in ("S3-10k", "S3-250", "S4-50k", "S4-3k", "S5-100k"):
        task = column[:2].lower()
        for m in (1, 2, 3):
            for lr in (1e-3, 1e-2):
                for seed in (0, 1):
                    examples = {"S3-250": 250, "S4-3k": 3000}.get(column, 1000)
                    model = with_row(ModelConfig(width=128), bdlru(m), 24)
                    config = RunConfig(task, model, train_examples=examples, lr=lr, seed=seed)
                    yield Cell(bdlru(m), column, "plain", config)
"""
EIGENVALUES = {
    "eigenvalues": [[[0.5, 0.0]], [[-0.5, 0.25], [-0.5, -0.25]]],
    "negative": 0.25,
    "complex": 0.5,
    "radius": 0.6,
}


def entry(config, validation, test, **measured):
    accuracy = lambda value: {"token": value, "macro": value, "sequence": value}  # noqa: E731
    result = {
        "validation": accuracy(validation),
        "test": accuracy(test),
        "parameters": 1234,
        "cpu_seconds": 2.5,
        "steps": 100,
    } | measured
    return Entry(
        config.id, "done", json.loads(config.to_json()), result, None, "abc123", "a machine"
    )


@pytest.fixture
def clone(tmp_path):
    """Make an experiment and a ledger with all runs of m = 1, and those of m = 2 on S3-10k only."""
    (tmp_path / "experiments").mkdir()
    path = tmp_path / "experiments" / "table_groups.py"
    path.write_text(EXPERIMENT)
    ledger = Ledger(tmp_path / "results" / "ledger.jsonl")
    for cell in load_places(path):
        if cell.row == bdlru(1) or (cell.row == bdlru(2) and cell.column == "S3-10k"):
            low, seed = cell.config.lr < 5e-3, cell.config.seed
            validation, test = (0.4, 0.9) if low else (0.5 + 0.1 * seed, 0.75 - 0.1 * seed)
            more = {"measured": EIGENVALUES | {"within": 0.8125}} if cell.row == bdlru(2) else {}
            ledger.append(entry(cell.config, validation, test, **more))
    return tmp_path


def test_selection_uses_validation_only(clone):
    places, complaints = gather(
        [clone / "experiments" / "table_groups.py"], Ledger(clone / "results" / "ledger.jsonl")
    )
    assert complaints == []
    assert len(places) == 15
    place = next(p for p in places if p.row == bdlru(2) and p.column == "S3-10k")
    assert place.best.choice.lr == 1e-2  # its test accuracy is lower
    assert place.best.choice.mean == pytest.approx(0.7)
    assert place.best.choice.deviation == pytest.approx(0.1 / 2**0.5)
    assert place.planned == 4
    assert next(p for p in places if p.row == bdlru(3)).best is None


AVERAGED = """
from statemix.models import ModelConfig
from statemix.sweep import Cell
from statemix.train import RunConfig

def cells():
    model = ModelConfig(options={"n_blocks": 4, "block_size": 2})
    for length in (64, 128):
        for seed in (0, 1):
            config = RunConfig("copy", model, length=length, seed=seed)
            yield Cell("BD-LRU m2", "copy", f"preset, length {length}", config, average="preset")
"""


def test_configurations_are_averaged_once_a_second_one_has_run(tmp_path):
    path, ledger = tmp_path / "averaged.py", Ledger(tmp_path / "ledger.jsonl")
    path.write_text(AVERAGED)
    short, other, long, _ = (cell.config for cell in load_places(path))
    ledger.append(entry(short, 0.8, 0.8))
    ledger.append(entry(other, 0.6, 0.6))
    best = gather([path], ledger)[0][0].best
    assert (best.recipe, best.choice.seeds) == ("preset, length 64", 2)
    assert best.choice.mean == pytest.approx(0.7)
    ledger.append(entry(long, 0.3, 0.3))
    best = gather([path], ledger)[0][0].best
    assert (best.recipe, best.choice.seeds) == ("preset, mean of 2 configurations", 1)
    assert best.choice.mean == pytest.approx(0.5)
    assert best.choice.deviation == pytest.approx(0.2 / 2**0.5)
    assert len(best.entries) == 3


def test_neighbours_and_averages(clone):
    places, _ = gather(
        [clone / "experiments" / "table_groups.py"], Ledger(clone / "results" / "ledger.jsonl")
    )
    values = read_values()
    found = {(n.paper.table, n.paper.row, n.paper.column): n for n in neighbours(places, values)}
    assert len(values) == len(found) == 268
    # An average needs all five columns; m = 2 has only one.
    assert found["table_groups", bdlru(1), "overall"].mean == pytest.approx(0.7)
    assert found["table_groups", bdlru(2), "overall"].mean is None
    assert found["table_groups", bdlru(1), "S3-10k"].difference == pytest.approx(0.7 - 0.56)
    lines = coverage(list(found.values())).splitlines()
    assert lines[2:] == [
        "table_chomsky: 0 of 68 measured",
        "268 values in the paper's tables",
        " 32 commented out in the paper's source",
        "  7 measured here",
        "  6 our mean is within 0.05 of the paper or above",
        "  0 our mean is within 0.02 of the paper",
        "  0 of these, both are at least 0.98",
        "  1 averages of other values",
        "  0 of the others, rest on one seed",
        "  0 of the others, have three seeds or more",
        "  2 of the others, have the paper's width and number of sequences",
        "  0 of the others, are runs of --scale paper",
    ]


def test_coverage_counts_means(clone):
    """A mean that is too low is not close, however good its best seed."""
    value = next(v for v in read_values() if v.accuracy == 1.0)
    cases = [(0.951, 1, 0.951), (0.949, 3, 1.0), (0.981, 3, 1.0), (1.0, 1, 1.0)]
    found = dict(facts([Neighbour(value, mean, 0.1, best, n) for mean, n, best in cases]))
    assert found["our mean is within 0.05 of the paper or above"] == 3
    assert found["our mean is within 0.02 of the paper"] == 2
    assert found["of these, both are at least 0.98"] == 2
    assert found["of the others, rest on one seed"] == 2
    assert found["of the others, have three seeds or more"] == 2


def test_tables(clone):
    places, _ = gather(
        [clone / "experiments" / "table_groups.py"], Ledger(clone / "results" / "ledger.jsonl")
    )
    grid = grids(neighbours(places, read_values()))["table_groups"]
    text = markdown(grid)
    assert "| BD-LRU m2 | 0.700 ± 0.071 [2] (1.000, −0.300) | · (0.490) |" in text
    assert len({line.count("|") for line in text.splitlines()}) == 1
    body = latex(grid).splitlines()
    assert r"BD-LRU m2 & 0.700 $\pm$ 0.071 [2] (1.000, $-$0.300) & -- (0.490)" in "\n".join(body)
    assert len({line.count("&") for line in body if line.endswith(r"\\")}) == 1


def test_reports_are_reproducible(clone, monkeypatch, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is only in the extras `plot` and `dev`")
    monkeypatch.chdir(clone)
    main(["report", "--out", "one"])
    assert (
        "7 of the paper's 268 values are measured; 6 of our"
        in capsys.readouterr().out.splitlines()[-1]
    )
    main(["report", "--out", "two"])
    names = {path.name for path in (clone / "one").iterdir()}
    assert {
        "index.html",
        "values.csv",
        "table_groups.md",
        "table_groups.tex",
        "fig_groups.svg",
        "fig_groups.pdf",
    } <= names
    for name in names:
        assert (clone / "one" / name).read_bytes() == (clone / "two" / name).read_bytes(), name
    lines = list(csv.DictReader((clone / "one" / "values.csv").read_text().splitlines()))
    assert len(lines) == 268
    assert sum(line["mean"] != "" for line in lines) == 7


@pytest.mark.parametrize(
    ("missing", "words"), [("experiments", "no experiments in"), ("ledger", "no ledger")]
)
def test_report_names_what_is_missing(clone, monkeypatch, missing, words):
    monkeypatch.chdir(clone)
    shutil.rmtree(clone / "experiments") if missing == "experiments" else (
        clone / "results" / "ledger.jsonl"
    ).unlink()
    with pytest.raises(SystemExit, match=words):
        main(["report", "--coverage"])


def test_rows():
    assert mixer_of("BD-LRU m4", 96) == ("bdlru", {"n_blocks": 24, "block_size": 4})
    assert mixer_of("H-LRU m16", 8) == ("hlru", {"n_channels": 1, "order": 16})
    for value in read_values():
        assert with_row(ModelConfig(), value.row, 96).mixer
    with pytest.raises(ValueError, match="Unknown row 'Transformer'"):
        mixer_of("Transformer", 96)
    assert asdict(Cell("a", "b", "c", RunConfig("s3")))["row"] == "a"


ACTIONS = """
const seen = {};
const send = (node, kind) => node.dispatchEvent(new PointerEvent(kind, {bubbles: true}));
const change = (id, value, kind) => { $(id).value = value; $(id).dispatchEvent(new Event(kind)); };
const dots = (id) => document.querySelectorAll(`#${id} .hit`);
change("experiment", "Products of permutations", "change");
change("column", "S3, 10,000 sequences", "input");
seen.points = dots("plot").length;
seen.missing = $("missing").textContent;
send(dots("plot")[0], "pointerover");
seen.tip = [$("tip").style.display, $("tip").textContent];
send(document.body, "pointerover");
seen.hidden = $("tip").style.display;
seen.table = $("cells").textContent;
change("column", "S4, 50,000 sequences", "input");
seen.other = dots("plot").length;
change("largest", 1, "input");
seen.rows = $("cells").rows.length;
change("plane-model", "BD-LRU, m = 2", "input");
const values = () => document.querySelectorAll("#plane .eigenvalue").length;
seen.first = [values(), $("plane-name").textContent];
change("plane-step", 1, "input");
seen.second = [values(), $("plane-name").textContent];
const details = document.querySelector("figure > details");
details.open = true;
details.dispatchEvent(new Event("toggle"));
seen.numbers = details.textContent;
return seen;
"""


def page_of(clone):
    """The report of the small ledger."""
    places, found = collect(clone / "experiments", clone / "results" / "ledger.jsonl")
    write_report_page(clone / "page.html", places, found, make_figures(places))
    return clone / "page.html"


def test_page_in_a_browser(clone, browser):
    """Select, point at a number, step through time, and open the numbers of a figure."""
    page = page_of(clone)
    assert "http" not in page.read_text().replace("http://www.w3.org/2000/svg", "")
    browser.look(page, 1280)
    seen = browser.run(ACTIONS)
    assert browser.messages() == []
    assert seen["points"] == 2 + 3  # two of ours, three of the paper's
    assert seen["missing"] == "9 of the experiment's 15 cells have not been run yet."
    assert seen["tip"][0] == "block"
    assert "BD-LRU, plain\nmodel: m = 1\naccuracy: 0.7 (0.6293 to 0.7707)" in seen["tip"][1]
    assert "n = 2, best 0.750" in seen["tip"][1]
    assert "abc123" in seen["tip"][1]
    assert "BD-LRU, m = 1plain0.700 ± 0.071 n 20.560+0.140" in seen["table"]
    assert seen["hidden"] == "none"
    assert seen["other"] == 1 + 3
    assert seen["rows"] == 2
    assert seen["first"] == [1, "the BOS token"]
    assert seen["second"] == [2, "token 1"]
    assert "S3, 10,000 sequences" in seen["numbers"]
    assert "0.7 (n = 2, best 0.750; plain)" in seen["numbers"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_the_report_is_readable(browser, report, width, scheme):
    """The committed ledger: no clipped or covered text, a clean console, enough contrast."""
    browser.look(report, width, scheme)
    assert browser.run(FAULTS) == []
    assert browser.messages() == []
    ratio, where = browser.run(CONTRAST)
    assert ratio >= 4.5, where


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of the committed ledger, with every figure."""
    root = Path(__file__).parents[1]
    ledger = root / "results" / "ledger.jsonl"
    places, found = collect(root / "experiments", ledger)
    figures = make_figures(places)
    figures.append(throughput_figure(root / "results" / "bench"))
    figures.append(language_figure(read_language(root / "experiments" / "lm_small.py", ledger)))
    path = tmp_path_factory.mktemp("report") / "index.html"
    write_report_page(path, places, found, figures)
    return path


def test_a_fault_is_found(browser, tmp_path):
    """The check of a layout itself: each kind of fault is reported."""
    page = tmp_path / "page.html"
    page.write_text(
        "<!doctype html><main id=m><p style='width:2000px'>wide</p><svg width=100 height=50>"
        "<text x=0 y=20>one</text><text x=5 y=22>two</text><text x=90 y=20>clipped</text>"
        "<text x=0 y=45 font-size=6>tiny</text></svg><img src='data:,'>"
        "<table><td style='max-width:1rem'>unbreakable</td></table>"
        "<p style='color:#ccc;background:#fff'>pale</p></main>"
    )
    browser.look(page, 420)
    faults = " ".join(browser.run(FAULTS))
    for words in ("leaves the page", "no description", "overlap", "clipped leaves", "tiny is"):
        assert words in faults
    assert "no alternative text" in faults
    assert "unbreakable is wider than its cell" in faults
    assert browser.run(CONTRAST)[0] < 2
    browser.messages()


def test_documents_are_rendered_from_the_ledger(tmp_path):
    """The committed docs/explanation/reproduce.md is up to date with the committed ledger."""
    root = Path(__file__).parents[1]
    copy = tmp_path / "reproduce.md"
    copy.write_text((root / "docs" / "explanation" / "reproduce.md").read_text())
    update_documents(
        root / "experiments",
        root / "results" / "ledger.jsonl",
        (copy,),
    )
    assert copy.read_text() == (root / "docs" / "explanation" / "reproduce.md").read_text()
    assert copy.read_text().count("<!-- end -->") >= 8


def test_an_unknown_region_raises(clone):
    path = clone / "page.md"
    path.write_text("before\n<!-- table_moon -->\nold\n<!-- end -->\nafter\n")
    with pytest.raises(
        ValueError, match="Unknown region 'table_moon' in a document. Available: table_mad"
    ):
        update_documents(clone / "experiments", clone / "results" / "ledger.jsonl", (path,))
    path.write_text("before\n<!-- runs table_groups -->\nold\n<!-- end -->\nafter\n")
    update_documents(clone / "experiments", clone / "results" / "ledger.jsonl", (path,))
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert "| BD-LRU m2 | S3-10k | plain | 2 | 0.700 ± 0.071 | 0.750 | 2 |" in lines


def test_regions_next_to_comments_and_at_the_end(clone):
    """A comment is not a region, names may have hyphens, and a file may end without a newline."""
    (clone / "experiments" / "table_groups.py").rename(clone / "experiments" / "my-groups.py")
    path = clone / "page.md"
    path.write_text(
        "<!-- a note -->\n\n<!-- runs my-groups -->\nold\n<!-- end -->\n"
        "<!-- another note -->\n<!-- runs my-groups -->\n<!-- end -->"
    )
    update_documents(clone / "experiments", clone / "results" / "ledger.jsonl", (path,))
    text = path.read_text()
    assert text.count("| BD-LRU m2 | S3-10k | plain | 2 | 0.700 ± 0.071 | 0.750 | 2 |") == 2
    assert (text.count("note -->"), text.count("old")) == (2, 0)


@pytest.mark.parametrize(("alone", "seeds"), [(0.62, 1), (0.531, 3)])
def test_the_best_mean_is_reported_with_its_seeds(tmp_path, alone, seeds):
    """The best mean wins, not the best run; of equal means, the one with more seeds."""
    path, ledger = tmp_path / "table_groups.py", Ledger(tmp_path / "ledger.jsonl")
    path.write_text(EXPERIMENT.replace("(0, 1)", "(0, 1, 2)"))
    cells = [cell for cell in load_places(path) if (cell.row, cell.column) == (bdlru(2), "S3-10k")]
    for cell in cells:
        if cell.config.lr == 1e-2:
            ledger.append(
                entry(
                    cell.config,
                    (0.25, 1.0, 0.33)[cell.config.seed],
                    (0.25, 0.95, 0.33)[cell.config.seed],
                )
            )
        elif cell.config.seed == 0:
            ledger.append(entry(cell.config, alone, 0.9))
    place = next(place for place in gather([path], ledger)[0] if place.measured)
    assert place.best.choice.seeds == seeds
    assert place.best.choice.mean == pytest.approx(0.9 if seeds == 1 else 0.51)
    assert place.best.choice.best == pytest.approx(0.9 if seeds == 1 else 0.95)


BARE = """
from statemix.models import ModelConfig
from statemix.sweep import Cell
from statemix.train import RunConfig

def cells():
    for m in (1, 2):
        yield RunConfig("s3", ModelConfig(options={"n_blocks": 4, "block_size": m}))
    for row in ("base|line", "with the default"):
        yield Cell(row, "S3", "plain", RunConfig("s3", seed=7))
"""


def test_bare_configs_and_configs_in_two_places(tmp_path):
    path, ledger, page = (
        tmp_path / "bare.py",
        Ledger(tmp_path / "ledger.jsonl"),
        tmp_path / "page.md",
    )
    path.write_text(BARE)
    for config in {cell.config.id: cell.config for cell in load_places(path)}.values():
        ledger.append(entry(config, 0.5, 0.5))
    page.write_text("<!-- runs bare -->\n<!-- end -->\n")
    update_documents(tmp_path, ledger.path, (page,))
    rows = [line.split(" | ")[0] for line in page.read_text().splitlines()[3:-1]]
    assert rows == [
        "| bdlru n_blocks=4 block_size=1",
        "| bdlru n_blocks=4 block_size=2",
        "| base\\|line",
        "| with the default",
    ]


def test_accuracy_over_all_lengths_next_to_the_longest(clone):
    """There is one line for each accuracy over all lengths, with the paper's value."""
    path = clone / "page.md"
    path.write_text("<!-- within table_groups -->\n<!-- end -->\n")
    update_documents(clone / "experiments", clone / "results" / "ledger.jsonl", (path,))
    assert path.read_text().splitlines()[3:-1] == [
        "| BD-LRU m2 | S3-10k | plain | 2 | 0.700 | 0.812 | 1.000 |"
    ]


def test_runs_at_the_size_of_the_paper_are_a_separate_recipe(tmp_path):
    path = tmp_path / "table_groups.py"
    path.write_text(
        EXPERIMENT.replace("def cells():", "def cells(scale):").replace(
            "24)", "96 if scale == 'paper' else 24)"
        )
    )
    ledger = Ledger(tmp_path / "ledger.jsonl")
    # The smaller run has a better validation accuracy, but is a separate comparison.
    for scale, validation in (("laptop", 0.8), ("paper", 0.6)):
        cell = next(cell for cell in load_places(path, scale) if cell.row == bdlru(2))
        ledger.append(entry(cell.config, validation, validation))
    places, _ = gather([path], ledger)
    place = next(place for place in places if place.measured)
    assert [measured.recipe for measured in place.measured] == ["plain, the paper's size", "plain"]
    found = neighbours(places, read_values())
    assert sum(n.full_size for n in found) == 1
    assert "  1 of the others, are runs of --scale paper" in coverage(found)
    assert "| BD-LRU m2 | 0.600‡ [1] (1.000, −0.400) |" in markdown(grids(found)["table_groups"])
    assert furthest(found).splitlines()[2:] == [
        "| table_groups | BD-LRU m2 | S3-10k | 0.600 | 1.000 | −0.400 | 1 | "
        "plain, the paper's size |"
    ]


LANGUAGE = """
from statemix.config.lm import LMRunConfig
from statemix.config.model import LMConfig
from statemix.sweep import Cell

def cells():
    blocks = {"n_blocks": 8, "block_size": 4}
    yield cell("bdlru-m4", "a", "bdlru", blocks, 0.01)
    yield cell("bdlru-m4", "a", "bdlru", blocks, 0.1)
    yield cell("bdlru-m4 × 2.0", "b", "bdlru", {"n_blocks": 16, "block_size": 4}, 0.1)
    yield cell("hlru-m2", "a", "hlru", {"n_channels": 5, "order": 2}, 0.01)
    yield cell("lstm", "a", "lstm", {"hidden": 7}, 0.1)
    yield cell("lstm", "a", "lstm", {"hidden": 7}, 0.1, seed=1)
    yield cell("lstm", "a", "lstm", {"hidden": 7}, 0.01)

def cell(name, panel, mixer, options, lr, seed=0):
    model = LMConfig(9, mixer=mixer, options=options)
    return Cell(name, panel, "muon", LMRunConfig(model, "abc", lr=lr, seed=seed))
"""


@pytest.fixture
def language(clone):
    """Make an experiment with language models, and a ledger with its first five cells."""
    experiment = clone / "experiments" / "lm_small.py"
    experiment.write_text(LANGUAGE)
    ledger = Ledger(clone / "results" / "ledger.jsonl")
    perplexities = (20.0, 30.0, 25.0, 21.0, 22.0)
    for cell, perplexity in zip(load_places(experiment), perplexities, strict=False):
        ledger.append(language_entry(cell.config, perplexity))
    return experiment, ledger


def language_entry(config, perplexity, *, seconds=2.0):
    result = {"parameters": 2000, "tokens": 4000, "perplexity": perplexity}
    result |= {"bits_per_byte": perplexity / 10, "cpu_seconds": seconds and seconds / config.lr}
    return make_entry(config, result, None)


def test_panels_of_language_models(language):
    experiment, ledger = language
    runs = read_language(experiment, ledger.path)
    a = PANELS["language a"](runs).splitlines()
    assert a[0] == "| model | parameters | lr 0.01 | lr 0.1 | best perplexity | bits per byte |"
    assert a[2:] == [
        "| BD-LRU m4 | 2,000 | 20.00 | 30.00 | 20.00 | 2.000 |",
        "| H-LRU m2 | 2,000 | 21.00 | · | 21.00 | 2.100 |",
        "| LSTM | 2,000 | · | 22.00 | 22.00 | 2.200 |",
    ]
    b = PANELS["language b"](runs).splitlines()
    assert b[2:] == [
        "| BD-LRU m4 | 32 | 2,000 | 30.00 |",
        "| BD-LRU m4 | 64 | 2,000 | 25.00 |",
    ], "at the rate of panel b"
    c = PANELS["language c"](runs).splitlines()
    assert c[2:] == [
        "| BD-LRU m4 | 2,000 | 110 | 20.00 |",
        "| H-LRU m2 | 2,000 | 20 | 21.00 |",
    ], "a median over rates"
    assert read_language(experiment.with_name("none.py"), ledger.path) == []


def test_seeds_of_language_models_are_averaged(language):
    """The time of an interrupted run is unknown and left out."""
    experiment, ledger = language
    other = load_places(experiment)[5].config
    assert other.seed == 1
    ledger.append(language_entry(other, 24.0, seconds=None))
    assert (
        PANELS["language a"](read_language(experiment, ledger.path)).splitlines()[-1]
        == "| LSTM | 2,000 | · | 23.00 | 23.00 ± 1.41 [2] | 2.300 |"
    )


def test_other_language_models_in_the_ledger_are_ignored(language):
    experiment, ledger = language
    runs = read_language(experiment, ledger.path)
    config = replace(load_places(experiment)[0].config, steps=5)
    ledger.append(language_entry(config, 1.0))
    assert read_language(experiment, ledger.path) == runs


def test_the_page_does_not_need_matplotlib(clone, monkeypatch):
    monkeypatch.chdir(clone)
    monkeypatch.setitem(sys.modules, "statemix.report.drawing", None)
    with pytest.raises(SystemExit, match="figures need matplotlib"):
        main(["report", "--out", "one"])
    assert 'id="plot"' in (clone / "one" / "index.html").read_text()


def test_report_draws_language_models(language, clone, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is only in the extras `plot` and `dev`")
    monkeypatch.chdir(clone)
    main(["report", "--out", "one"])
    assert (clone / "one" / "fig_language.pdf").read_bytes().startswith(b"%PDF")
    assert "| H-LRU m2 |" in (clone / "one" / "language.md").read_text()
    page = (clone / "one" / "index.html").read_text()
    assert "Language models" in page
    assert "n = 1 seeds" not in page
    assert "Throughput" not in page  # no throughput was measured


def test_certificates_are_counted(tmp_path):
    """Two of three runs are proved."""
    experiments = tmp_path / "experiments"
    experiments.mkdir()
    ledger = Ledger(tmp_path / "ledger.jsonl")
    shutil.copy(Path(__file__).parents[1] / "experiments" / "certified.py", experiments)
    places = load_places(experiments / "certified.py")
    cells = [cell for cell in places if (cell.column, cell.recipe) == ("s3", "restarts")][:3]
    proof = {"holds": True, "blocks": [2], "slack": 1.5, "pairs": 6}
    found = [proof, {**proof, "blocks": [5], "slack": 0.25}, None]
    for cell, certificate in zip(cells, found, strict=True):
        measured = {"by_length": {"64": 1.0, "1024": 0.75}}
        ledger.append(
            entry(cell.config, 1.0, 1.0, restarts=2, certificate=certificate, measured=measured)
        )
    document = tmp_path / "document.md"
    document.write_text("<!-- certificates certified -->\n<!-- end -->\n")
    update_documents(experiments, ledger.path, (document,))
    assert (
        "| BD-LRU m3 | s3 | restarts | 2 of 3 | 2–5 | 6 | 0.25 | 6 | 2 (2) |"
        in document.read_text()
    )


def test_the_experiments_of_a_wheel_are_used_outside_a_clone(tmp_path, monkeypatch):
    package = tmp_path / "site" / "statemix"
    (package / "experiments").mkdir(parents=True)
    monkeypatch.setattr(statemix, "__file__", str(package / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    assert find_experiments() == package / "experiments"
    (tmp_path / "experiments").mkdir()
    assert find_experiments() == Path("experiments")


SAMPLES = """
from statemix.models import ModelConfig
from statemix.paper import bdlru, with_row
from statemix.sweep import Cell
from statemix.train import RunConfig

def cells():
    for row in (bdlru(3), "LSTM"):
        for seed in (0, 1):
            model = with_row(ModelConfig(width=128), row, 24)
            config = RunConfig("s3", model, train_examples=250, seed=seed)
            yield Cell(row, "S3-250", "plain", config)
"""


def test_verdicts_follow_the_runs(tmp_path):
    """A verdict names its seeds, changes with the means, and is open without runs."""
    experiment, ledger = tmp_path / "table_groups.py", Ledger(tmp_path / "ledger.jsonl")
    experiment.write_text(SAMPLES)
    page = tmp_path / "page.md"
    page.write_text("<!-- verdicts -->\n<!-- end -->\n")

    def row():
        update_documents(tmp_path, ledger.path, (page,))
        return next(line for line in page.read_text().splitlines() if "few samples" in line)

    cells = load_places(experiment)
    for cell in cells[:3]:
        ledger.append(entry(cell.config, 1.0, 1.0 if cell.row == bdlru(3) else 0.3))
    assert "| **confirmed**, partly on one seed | From 250 sequences of S3, m = 3 has" in row()
    assert "n 1–2, width 128, median 100 steps, 26 % of the paper's" in row()
    ledger.append(entry(cells[3].config, 1.0, 1.0))
    assert "**confirmed**, " not in row()
    ledger.path.write_text(ledger.path.read_text().replace('"token": 0.3', '"token": 1.0'))
    assert "| **confirmed for BD-LRU, not against the LSTM** |" in row()
    assert "| recall needs mixing | **–** | – |" in page.read_text()
    assert "| S5 becomes easier with m | **open** | Some of its cells" in page.read_text()


def test_models_are_compared_in_one_recipe():
    """The recipe that both rows have, although each is better in another."""

    def place(row, **means):
        def measured(recipe, mean):
            choice = Choice({}, 1e-3, 1, mean, mean, 0.0, mean)
            return Measured(recipe, choice, ())

        found = tuple(measured(recipe, mean) for recipe, mean in means.items())
        return Place("table_mad", row, "copy", 2, found)

    places = [place("a", plain=0.3, long=0.9), place("b", plain=0.4, wide=0.95)]
    evidence = Evidence({(p.experiment, p.row, p.column): p for p in places}, [])
    assert evidence.alike("table_mad", ("a", "b"), "copy") == {"a": 0.3, "b": 0.4}
    assert evidence.seeds == [1, 1]
    assert all(
        math.isnan(mean) for mean in evidence.alike("table_mad", ("a", "c"), "copy").values()
    )
