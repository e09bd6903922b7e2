"""Damaged files are refused with an error that names the file, what is wrong, and what to do."""

import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from texts import little_data, write_texts

from statemix.config.build import build
from statemix.config.model import LMConfig
from statemix.data.sources import from_files
from statemix.data.tokens import open_data
from statemix.files import tensors
from statemix.files.json_files import Damaged, parse_json, read_object, read_rows
from statemix.files.tensors import hash_of_file, read_tensors
from statemix.files.writing import remove_stale, write_array, writing_directory
from statemix.lm.saved import load_model, save_model
from statemix.models import LanguageModel
from statemix.proof.saved import load_certificate
from statemix.runs.checkpoint import DamagedCheckpoint, load_checkpoint, save_checkpoint
from statemix.runs.lock import entered
from statemix.sweep import Ledger
from statemix.sweep.ledger import Entry, make_entry
from statemix.train import RunConfig, train
from statemix.train.state import Counters, RunResult
from statemix.train.trained import load_trained

TINY = RunConfig("s2", length=4, train_examples=32, test_examples=16, batch=16, epochs=1, lr=1e-2)
SMALL = LMConfig(vocab=7, width=8, layers=1, options={"n_blocks": 2, "block_size": 2})


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    train(TINY, directory)
    return directory


@pytest.fixture
def run(finished, tmp_path):
    for name in ("config.json", "checkpoint.safetensors", "metrics.jsonl", "result.json"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    return tmp_path


def rewrite(path, change, *, hashed):
    """Change the tensors of a checkpoint, as a program that is not ours would do."""
    tensors, header = read_tensors(path)
    if not hashed:
        del header["sha256"]
    change(tensors)
    save_file(tensors, path, header)


def set_nan(tensors):
    tensors["best.head.bias"][0] = torch.nan


def set_integers(tensors):
    tensors["best.head.bias"] = tensors["best.head.bias"].view(torch.int32)


def cut(tensors):
    tensors["best.head.bias"] = tensors["best.head.bias"][:1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_nan, "`head.bias` has numbers that are infinite or NaN"),
        (set_integers, "`head.bias` must be torch.float32, got torch.int32"),
        (cut, "`head.bias` must have the shape (2,), got (1,)"),
        (lambda tensors: tensors.pop("best.head.bias"), "missing: head.bias"),
    ],
)
@pytest.mark.parametrize("hashed", [True, False])
def test_damaged_weights_of_a_run_are_refused(run, change, message, hashed):
    rewrite(run / "checkpoint.safetensors", change, hashed=hashed)
    (run / "result.json").unlink()
    for open_run in (load_trained, lambda directory: train(TINY, directory)):
        with pytest.raises(DamagedCheckpoint) as error:
            open_run(run)
        assert ("its hash does not match" if hashed else message) in str(error.value)
        assert str(run / "checkpoint.safetensors") in str(error.value)
        assert "Delete it to train from the start" in str(error.value)


def test_moments_are_checked(run):
    def spoil(tensors):
        name = next(name for name in tensors if name.startswith("optimiser.exp_avg."))
        tensors[name].fill_(torch.inf)

    rewrite(run / "checkpoint.safetensors", spoil, hashed=False)
    (run / "result.json").unlink()
    with pytest.raises(
        DamagedCheckpoint, match=r"the moment `exp_avg\..*` has numbers that are inf"
    ):
        train(TINY, run)


def test_a_config_that_is_not_that_of_the_weights_is_refused(run):
    (run / "config.json").write_text(replace(TINY, seed=7).to_json())
    with pytest.raises(ValueError, match="belongs to another config"):
        load_trained(run)


def test_a_checkpoint_without_a_hash_still_loads(run):
    before = load_checkpoint(run / "checkpoint.safetensors")[0]
    rewrite(run / "checkpoint.safetensors", lambda tensors: None, hashed=False)
    after = load_checkpoint(run / "checkpoint.safetensors")[0]
    assert all(torch.equal(x, after[name]) for name, x in before.items())


def test_every_byte_of_a_checkpoint_counts(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, {"x": torch.arange(4.0)}, {"step": 3})
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :])
        with pytest.raises(DamagedCheckpoint):
            load_checkpoint(path)


def saved_model(directory, change=lambda tensors: None, *, hashed=True):
    save_model(directory, SMALL, LanguageModel(SMALL).state_dict(), about={"train_length": 4})
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    if not hashed:
        header = json.loads((directory / "config.json").read_text())
        del header["sha256"]
        (directory / "config.json").write_text(json.dumps(header))
    return directory


@pytest.mark.parametrize("hashed", [True, False])
def test_damaged_weights_of_a_language_model_are_refused(tmp_path, hashed):
    def spoil(tensors):
        tensors["head.weight"][0, 0] = torch.nan

    directory = saved_model(tmp_path / "model", spoil, hashed=hashed)
    message = "its hash does not match" if hashed else "`head.weight` has numbers that are infinite"
    with pytest.raises(Damaged, match=f"model.safetensors is damaged: {message}.* Copy or export"):
        load_model(directory)


def test_a_model_in_half_precision_without_a_hash_loads(tmp_path):
    def halve(tensors):
        tensors.update({name: x.bfloat16() for name, x in tensors.items()})

    model = load_model(saved_model(tmp_path / "model", halve, hashed=False)).model
    assert model.head.weight.dtype == torch.bfloat16


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested(100_000), "nested more than 64 deep"),
        (nested(70), "nested more than 64 deep"),
        ("9" * 10_000, "digits"),
        ("123456789012345678901234567890", "exceeds 64 bits"),
        (b'"\xff\xfe"', "not UTF-8"),
        (r'"\ud800"', "not Unicode"),
        (r'"\u0000"', "zero byte"),
        ("{", "Expecting property name"),
    ],
)
def test_hostile_json_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        parse_json(text)


def test_errors_in_json_name_the_file_and_the_remedy(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1, 2]")
    with pytest.raises(
        Damaged, match=r"config.json is damaged: it must be a JSON object, .* Do so\."
    ):
        read_object(path, "Do so.")


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (RunResult, {"steps": []}, r"`steps` must be a whole number, got \[\]"),
        (RunResult, {"steps": True}, "`steps` must be a whole number, got True"),
        (RunResult, {"seconds": "a"}, "`seconds` must be a number, got 'a'"),
        (RunResult, {"validation": {"token": 1.0}}, "it lacks macro, sequence"),
        (RunResult, {"curve": [[1, "x"]]}, "`curve` must be a number, got 'x'"),
        (RunResult, {"other": 1}, "unknown fields: 'other'"),
        (Counters, {"step": -1}, "`step` must be finite and not negative, got -1"),
        (Counters, {"seconds": float("nan")}, "`seconds` must be finite and not negative, got nan"),
        (Counters, {"ended": 1}, "`ended` must be true or false, got 1"),
    ],
)
def test_fields_from_json_are_checked(kind, change, message):
    shares = {"token": 1.0, "macro": 1.0, "sequence": 1.0}
    counts = dict.fromkeys(
        ["steps", "epochs", "best_epoch", "restarts", "parameters", "shared_inputs"], 1
    )
    times = {"train": 1.0, "seconds": 1.0, "cpu_seconds": 1.0}
    result = {"id": "x", **counts, **times, "validation": shares, "test": shares}
    right = {RunResult: result, Counters: asdict(Counters())}[kind]
    assert asdict(build(kind, right)) | right == asdict(build(kind, right))
    with pytest.raises(ValueError, match=message):
        build(kind, {**right, **change})


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return little_data(tmp_path_factory.mktemp("text")).directory


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda meta: meta["splits"]["train"]["shards"][0].update(name="../outside"), "of a file"),
        (lambda meta: meta["splits"]["train"]["shards"][0].update(tokens=10**30), "64 bits"),
        (lambda meta: meta["splits"]["validation"].update(shards=[]), "at least one shard"),
        (lambda meta: meta["splits"].pop("validation"), "lacks the split validation"),
        (lambda meta: meta.update(vocab="many"), "`vocab` must be a whole number, got 'many'"),
        (lambda meta: meta.update(eot=10**6), "`eot` must be below `vocab`"),
        (lambda meta: meta.update(splits=[]), "`splits` must be a JSON object"),
    ],
)
def test_a_description_of_data_is_checked(text, tmp_path, change, message):
    meta = json.loads((text / "data.json").read_text())
    change(meta)
    (tmp_path / "data.json").write_text(json.dumps(meta))
    with pytest.raises(ValueError, match=f"data.json is damaged: .*{message}.* Prepare the text"):
        open_data(tmp_path)


def test_a_line_of_a_ledger_must_belong_to_its_config(tmp_path):
    shares = {"token": 1.0, "macro": 1.0, "sequence": 1.0}
    entry = make_entry(TINY, {"id": TINY.id, "validation": shares, "test": shares}, None)
    lines = [
        asdict(entry),
        {**asdict(entry), "id": "0" * 16},
        {**asdict(entry), "config": {**entry.config, "lr": "fast"}},
        {**asdict(entry), "result": {"id": TINY.id}},
        {**asdict(entry), "result": {**entry.result, "test": {"token": 1e300}}},
        {**asdict(entry), "status": "finished"},
    ]
    path = tmp_path / "ledger.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + nested(100_000) + "\n")
    entries, complaints = Ledger(path).read()
    assert entries == [entry]
    assert isinstance(entries[0], Entry)
    assert len(complaints) == 6
    assert "is not that of its config" in complaints[0]


@pytest.mark.parametrize("kind", ["pipe", "device", "directory"])
def test_only_regular_files_are_read(tmp_path, kind):
    path = tmp_path / "texts.jsonl"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for read in (
        lambda: read_tensors(path),
        lambda: hash_of_file(path),
        lambda: read_object(path, "Do so."),
        lambda: read_rows(Counters, path, "Do so."),
        lambda: Ledger(path).read(),
        lambda: Ledger(path).check_writable(),
        lambda: list(from_files("x", [path], "text").read()),
    ):
        with pytest.raises(ValueError, match=f"must be a regular file, but it is a {kind}"):
            read()


@pytest.mark.parametrize("text", [nested(100_000), '{"format": 1' + "0" * 9_000 + "}", "[]"])
def test_a_hostile_certificate_is_refused(tmp_path, text):
    (tmp_path / "certificate.json").write_text(text)
    with pytest.raises(ValueError, match=r"certificate.json is (damaged|not a certificate)"):
        load_certificate(tmp_path / "certificate.json")


def test_rows_of_a_file_are_checked(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"step": 1, "other": 2}\n{"step": "two"}\n')
    with pytest.raises(Damaged, match=r"rows.jsonl is damaged: line 2: `step` must be a whole"):
        read_rows(Counters, path, "Do so.")


def test_a_full_disk_is_reported_for_small_arrays():
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_array(Path("/dev/full"), np.arange(3))


def test_what_killed_writers_left_behind_is_removed(tmp_path):
    (tmp_path / "result.json.99999999.part").write_text("{")
    (tmp_path / "final.99999999.part").mkdir()
    (tmp_path / "final.99999999.part" / "model.safetensors").write_text("half")
    (tmp_path / "final").mkdir()
    (tmp_path / "final.99999999.old").mkdir()
    (tmp_path / "other.99999999.old").mkdir()  # its successor is missing
    (tmp_path / "thesis.part").write_text("of another program")
    with entered(tmp_path):
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "final",
            "lock",
            "other.99999999.old",
            "thesis.part",
        ]


def test_a_part_that_is_being_written_stays(tmp_path):
    with writing_directory(tmp_path / "out") as part:
        (part / "file").write_text("x")
        remove_stale(tmp_path)
        remove_stale(tmp_path, "out")
        assert (part / "file").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(OSError, match="not empty"), writing_directory(tmp_path / "out") as part:
        (part / "file").write_text("y")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out" / "file").read_text() == "x"


def test_preparing_again_removes_the_part_of_a_killed_process(tmp_path):
    texts = write_texts(tmp_path / "texts", documents=4)
    (tmp_path / "out.99999999-abc.part").mkdir()
    little_data(tmp_path)
    remove_stale(tmp_path, "out")
    assert texts.is_dir()
    assert not list(tmp_path.glob("*.part"))


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "weights.safetensors"
    save_file({"x": torch.zeros(3)}, path)
    real, calls = tensors.safe_open, []

    def replace_the_first_time(*arguments, **options):
        calls.append(1)
        opened = real(*arguments, **options)
        if len(calls) == 1:
            save_file({"x": torch.ones(3)}, tmp_path / "new")
            os.replace(tmp_path / "new", path)
        return opened

    monkeypatch.setattr(tensors, "safe_open", replace_the_first_time)
    assert torch.equal(read_tensors(path)[0]["x"], torch.ones(3))
    assert len(calls) == 2
