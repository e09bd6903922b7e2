"""The leaderboard: its runs, what they are measured by, its standings, and its command."""

import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import CONTRAST, FAULTS
from torch import nn

from statemix.cli import main
from statemix.leaderboard import (
    ENTRIES,
    PROTOCOLS,
    RATES,
    cells,
    find_entries,
    find_protocol,
    published_cells,
)
from statemix.leaderboard.cells import track_of
from statemix.leaderboard.measure import held_length, test_accuracy
from statemix.leaderboard.proofs import proved_runs
from statemix.leaderboard.protocols import Trial, protocol_of
from statemix.leaderboard.published import SOURCES, read_published
from statemix.leaderboard.standings import label_of, standings
from statemix.leaderboard.tables import make_boards, update_markdown, write_page
from statemix.models import ModelConfig, build_model
from statemix.sweep import Entry, Ledger
from statemix.tasks import IGNORE, find_task
from statemix.train import RunConfig, train
from statemix.train.state import start_run
from statemix.train.trained import load_trained

test_accuracy.__test__ = False  # a function of the package, not a test
SLICE = find_protocol("slice")
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "leaderboard.md"


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_every_entry_has_a_model_for_every_task(protocol):
    ids = set()
    for label, entry in ENTRIES.items():
        for config in cells(protocol, entry, rates=RATES[:1], seeds=[0]):
            task = protocol.test_task(config.task)
            model = build_model(config.model, task, config.length)
            logits, _ = model(torch.zeros(1, 5, dtype=torch.long))
            assert logits.shape == (1, 5, task.classes)
            assert label_of(config) == label
            assert protocol_of(config) == protocol
            assert config.length <= protocol.longest
            ids.add(config.id)
    assert len(ids) == len(ENTRIES) * len(protocol.tasks)


def test_the_runs_of_a_seed_come_before_those_of_the_next():
    found = list(cells(SLICE, ENTRIES["LSTM"]))
    assert [config.seed for config in found] == [0] * 8 + [1] * 8 + [2] * 8
    assert {config.lr for config in found} == set(RATES)
    one = list(cells(SLICE, ENTRIES["LSTM"], tasks=["parity"], rates=[0.1], seeds=[5]))
    assert [(c.task, c.lr, c.seed) for c in one] == [("parity", 0.1, 5)]


def test_hard_gates_in_two_layers_train_by_the_preset_that_ends_with_a_proof():
    entry = ENTRIES["BD-LRU m5, hard"]
    (config,) = cells(SLICE, entry, tasks=["mod_arith"], rates=[0.02], seeds=[0])
    assert (config.stages, config.certify, config.harden, config.lr) == ("words", True, False, 0.02)
    assert config.model.options["gate"] == "hardmax"
    assert config.total_steps == 5000
    (config,) = cells(SLICE, entry, tasks=["parity"], rates=[0.02], seeds=[0])
    assert (config.stages, config.certify, config.harden) == ("prefixes", False, True)


def test_entries_are_found_by_patterns():
    assert find_entries(["BD-LRU*"]) == [ENTRIES["BD-LRU m5, hard"], ENTRIES["BD-LRU m5"]]
    with pytest.raises(ValueError, match=r"No entry matches 'GRU'. Available: BD-LRU m5, hard, "):
        find_entries(["GRU"])


class RightUpTo(nn.Module):
    """Computes parity, up to a number of letters."""

    def __init__(self, letters: int) -> None:
        super().__init__()
        self.letters = letters

    def forward(self, tokens, states=None, *, read_from=0):
        words = tokens[:, : self.letters]
        odd = torch.where(words == 2, 0, words).sum(1) % 2
        logits = torch.nn.functional.one_hot(odd, 2).float()
        return logits[:, None].expand(-1, tokens.shape[1] - read_from, -1), None


@pytest.mark.parametrize(
    ("letters", "held"), [(40, 0), (64, 64), (200, 128), (256, 256), (4096, 4096), (9999, 4096)]
)
def test_a_model_holds_up_to_the_last_length_where_it_is_right(letters, held):
    assert held_length(SLICE.test_task("parity"), RightUpTo(letters), seed=0) == held


def test_accuracy_is_over_the_tested_lengths():
    task = SLICE.test_task("parity")
    assert test_accuracy(SLICE, task, RightUpTo(256), [0, 1]) == 1.0
    # Half of the lengths are right, and of the rest half of the guesses.
    assert 0.65 < test_accuracy(SLICE, task, RightUpTo(148), [0, 1]) < 0.85
    assert test_accuracy(SLICE, task, RightUpTo(20), [0, 1]) == pytest.approx(0.5, abs=0.05)


def entry(label: str, task: str, lr: float, seed: int, validation: float, accuracy: float, **more):
    (config,) = cells(SLICE, ENTRIES[label], tasks=[task], rates=[lr], seeds=[seed])
    measured = {
        "leaderboard": "slice", "track": "open", "validation": validation, "accuracy": accuracy,
        "held": 256, "certified": False,
    } | more  # fmt: skip
    result = {"measured": measured, "cpu_seconds": 60.0 * (seed + 1), "steps": 1000}
    return Entry(config.id, "done", asdict(config), result, None, "commit", "machine")


def test_validation_chooses_the_rate_and_test_is_reported():
    runs = [
        entry("LSTM", "parity", 0.02, 0, 0.6, 1.0),
        entry("LSTM", "parity", 0.003, 0, 1.0, 1.0),  # replaced by the next
        entry("LSTM", "parity", 0.003, 0, 0.9, 0.8),
        entry("LSTM", "parity", 0.003, 1, 0.9, 0.9, held=1024),
        entry("BD-LRU m5, hard", "parity", 0.02, 0, 1.0, 1.0, held=4096, certified=True),
    ]
    found = standings(runs, SLICE)
    assert [s.mixer for s in found] == ["BD-LRU m5, hard", "LSTM"]
    best, lstm = found
    assert (lstm.lr, lstm.seeds, lstm.solved, lstm.held) == (0.003, 2, 0, (256, 1024))
    assert lstm.accuracy == pytest.approx(0.85)
    assert lstm.sd == pytest.approx(np.std([0.8, 0.9], ddof=1))
    assert lstm.minutes == 2.0
    assert (best.solved, best.certified) == (1, 1)
    boards = {board.name: board for board in make_boards(SLICE, runs)}
    assert boards["slice open"].rows == [
        ("BD-LRU m5, hard", "–", "–", "–", "1.000 (1 of 1, 1 proved)"),
        ("LSTM", "–", "–", "–", "0.850 ± 0.071 (0 of 2)"),
    ]
    (first, second) = boards["slice open runs"].rows
    assert first[3:6] == ("every length", "1 of 1", "1 of 1")
    assert second[3:6] == ("256 to 1024", "0 of 2", "–")


def test_runs_of_other_protocols_and_failed_runs_do_not_count():
    run = entry("LSTM", "parity", 0.02, 0, 1.0, 1.0)
    other = entry("LSTM", "parity", 0.02, 1, 1.0, 1.0, leaderboard="deltaproduct")
    failed = replace(entry("LSTM", "parity", 0.02, 2, 1.0, 1.0), status="failed", result=None)
    (found,) = standings([run, run, other, failed], SLICE)
    assert found.seeds == 1


def test_runs_that_were_to_be_proved_count_where_they_trained_at_the_protocols_lengths():
    def run(task: str, length: int, seed: int, **result):
        model = ModelConfig(options={"n_blocks": 8, "block_size": 5})
        config = RunConfig(task, model, length=length, seed=seed)
        result = {"cpu_seconds": 60.0 * (seed + 1), **result}
        return Entry(config.id, "done", asdict(config), result, None, "commit", "machine")

    runs = [
        run("s5", 128, 0, certificate={"holds": True}, measured={"holds": False}),
        run("s5", 128, 1, measured={"holds": True}),
        run("s5", 128, 4, measured={"holds": False}),
        run("s5", 129, 0, measured={"holds": True}),
        run("s5", 128, 7, measured={"by_length": {}}),
        run("parity", 16, 0, measured={"holds": True}),
    ]
    (found,) = proved_runs(runs, find_protocol("deltaproduct"))
    assert (found.mixer, found.task, found.length) == ("BD-LRU m5", "s5", 128)
    assert (found.seeds, found.proved, found.minutes) == (3, 2, (2.0, 5.0))
    (found,) = proved_runs(runs, SLICE)
    assert (found.task, found.answers, found.proved) == ("parity", "end", 1)
    boards = {board.name: board for board in make_boards(SLICE, runs)}
    assert boards["slice proofs"].rows == [
        ("parity", "BD-LRU m5", "1", "up to 16", "end", "1 of 1", "1.0", "1.0")
    ]


def test_published_values_name_their_sources():
    values = read_published("slice")
    assert {value.source for value in values} == set(SOURCES)
    assert {value.task for value in values} == set(SLICE.tasks)
    assert all(0 < value.accuracy <= 1 for value in values)
    places = [(value.mixer, value.task, value.source) for value in values]
    assert len(set(places)) == len(places)
    found = {place: (v.accuracy, v.sd) for place, v in zip(places, values, strict=True)}
    assert found["PD-SSM", "mod_arith", "PD-SSM"] == (0.962, 0.034)
    assert found["RWKV-7", "parity", "PD-SSM"] == (0.51, None)


def test_a_document_keeps_what_is_not_a_table(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "Before.\n\n<!-- leaderboard slice published -->\nold\n<!-- end -->\n\nAfter.\n"
    )
    boards = make_boards(SLICE, [])
    update_markdown(page, boards)
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("<!-- end -->\n\nAfter.\n")
    assert "old" not in text
    assert "| PD-SSM | 0.995 | 0.997 | 0.962 ± 0.034 | 0.999 | PD-SSM |" in text
    update_markdown(page, boards)
    assert page.read_text() == text


def test_the_page_of_the_documentation_shows_the_ledger(tmp_path):
    """The standings in the page are those of the committed ledger.

    The tables of proofs also change with other experiments, so they are not compared.
    """
    page = tmp_path / "leaderboard.md"
    page.write_text(PAGE.read_text())
    entries, _ = Ledger(PAGE.parents[2] / "results" / "ledger.jsonl").read()
    for protocol in PROTOCOLS.values():
        boards = make_boards(protocol, entries)
        update_markdown(page, [board for board in boards if not board.name.endswith("proofs")])
    assert page.read_text() == PAGE.read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1280])
def test_the_page_is_readable(browser, tmp_path, width, scheme):
    """Wide tables scroll inside the page, which has enough contrast and a clean console."""
    entries, _ = Ledger(PAGE.parents[2] / "results" / "ledger.jsonl").read()
    protocol = PROTOCOLS["slice"]
    page = tmp_path / "board.html"
    write_page(page, protocol.title, make_boards(protocol, entries))
    browser.look(page, width, scheme)
    assert browser.run(FAULTS) == []
    assert browser.messages() == []
    ratio, where = browser.run(CONTRAST)
    assert ratio >= 4.5, where


def test_a_stranger_enters_a_mixer_with_one_file_and_one_command(tmp_path, monkeypatch, capsys):
    """The file and the command of the documentation, for 400 steps of one task, rate and seed."""
    monkeypatch.setitem(SLICE.tasks, "parity", Trial(layers=1, steps=400))
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (command,) = re.findall(r"```sh\nstatemix (leaderboard .*?)\n```", PAGE.read_text())
    monkeypatch.chdir(tmp_path)
    Path("my_mixer.py").write_text(source)
    part = ["--tasks", "parity", "--rates", "0.003", "--seeds", "0", "--out", "board.html"]
    main([*command.split(), *part])
    printed = capsys.readouterr().out
    assert "1 runs done, 0 failed" in printed
    assert re.search(r"parity +cumsum +0\.[45]", printed)
    assert "<td>cumsum</td>" in Path("board.html").read_text()
    (run,) = Ledger(Path("results/ledger.jsonl")).read()[0]
    assert run.config["model"]["mixer"] == "cumsum"
    assert list(run.files) == ["my_mixer.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--options", "a=1"], "--options are those of --mixer"),
        (["--entries", "GRU"], "No entry matches 'GRU'"),
        (["--out", "board.txt"], "--out takes a .md or an .html file"),
        (["--entries", "LSTM", "--steps", "5"], "--steps are those of --track published"),
        (["--entries", "LSTM", "--track", "published", "--rates", "1"], "has one rate"),
        (["--workers", "0"], "--workers must be"),
    ],
)
def test_the_command_refuses_what_has_no_meaning(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(["leaderboard", *arguments])
    assert message in f"{error.value} {capsys.readouterr().err}"


def published_run(task: str = "parity", **changes):
    (config,) = published_cells(SLICE, ENTRIES["BD-LRU m5, hard"], tasks=[task], seeds=[0])
    return replace(config, **changes)


def test_the_published_track_has_the_published_training():
    config = published_run("mod_arith")
    assert (config.batch, config.lr, config.max_steps) == (256, 2e-3, 100_001)
    assert (config.model.width, config.model.layers) == (128, 2)
    assert config.model.options["gate"] == "hardmax"
    assert label_of(config) == "BD-LRU m5, hard"
    assert track_of(config) == "published"
    assert config.total_steps == 100_001
    with pytest.raises(ValueError, match="'deltaproduct' has no published training"):
        list(published_cells(find_protocol("deltaproduct"), ENTRIES["LSTM"]))


def test_published_words_have_three_to_forty_letters_and_are_tested_up_to_256():
    run = start_run(published_run("mod_arith", train_examples=2000, test_examples=2000))
    lengths = {name: set((x.inputs != 8).sum(1)) for name, x in run.data.items()}
    assert lengths["train"] == set(range(3, 40, 2))
    assert lengths["validation"] == lengths["test"] == set(range(41, 256, 2))
    assert not (run.data["validation"].inputs[:50] == run.data["test"].inputs[:50]).all()
    targets = run.data["test"].targets
    assert ((targets != IGNORE).sum(1) == 1).all()


def test_fresh_sequences_are_the_same_after_an_interruption(tmp_path, monkeypatch):
    monkeypatch.setattr("statemix.train.loop.CHECKPOINT_SECONDS", 0.0)
    config = published_run(train_examples=256, test_examples=8, max_steps=3, epochs=3)
    config = replace(config, model=ModelConfig(options={"n_blocks": 2}, width=8), tested=(40, 50))
    seen = []
    whole = train(config, tmp_path / "a", observer=lambda run, _: seen.append(run.data["train"]))
    assert not (seen[0].inputs == seen[1].inputs).all()

    def stop(run, report):
        if report.epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(config, tmp_path / "b", observer=stop)
    resumed = train(config, tmp_path / "b")
    assert resumed.curve == whole.curve
    ours, theirs = (load_trained(tmp_path / name)[2].state_dict() for name in "ab")
    assert all((ours[name] == theirs[name]).all() for name in ours)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tested": (40,)}, "`tested` must have the shortest and the longest length, got"),
        ({"tested": (40, 30)}, "`tested` must have the shortest and the longest length, got"),
        ({"curriculum": (3, 5)}, "`fresh` draws new sequences for every epoch"),
    ],
)
def test_lengths_and_fresh_sequences_that_have_no_meaning(changes, message):
    with pytest.raises(ValueError, match=message):
        published_run(**changes)


def test_tasks_without_words_are_not_tested_at_other_lengths():
    with pytest.raises(ValueError, match="needs a task with words of several lengths"):
        start_run(RunConfig("s3", tested=(4, 5)))
    task = find_task("parity", {"shortest": 50})
    with pytest.raises(ValueError, match="no words of 50 to 40 letters"):
        task.examples(3, 40, np.random.default_rng(0), training=True)
