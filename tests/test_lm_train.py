"""Training a language model in one process gives the same losses, also after interruptions."""

import copy
import errno
import fcntl
import json
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from lm_runs import losses, metrics, tiny_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from texts import little_data, small_files

from statemix.cli import main
from statemix.config.lm import Execution, LMRunConfig, run_config_from_dict
from statemix.data import open_data
from statemix.files.tensors import hash_of_file
from statemix.lm import load_model
from statemix.lm.checkpoint import Store
from statemix.lm.measure import flops_per_token, measure_quality
from statemix.lm.ranks import Scored, ranks_of
from statemix.lm.result import read_config
from statemix.lm.step import digest, learning_rate
from statemix.lm.trainer import train_lm
from statemix.models.lm import LanguageModel, LMConfig
from statemix.optim import decays, is_inner_matrix, make_optimiser, orthogonal

pytest.importorskip(
    "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
)
QUICK = Execution(save_every=3, peak_flops=1e9)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return little_data(tmp_path_factory.mktemp("little"))


@pytest.fixture(scope="module")
def config(data):
    model = LMConfig(data.meta.vocab, 16, 2, "bdlru", {"n_blocks": 3, "block_size": 2})
    return LMRunConfig(
        model, digest(data), length=24, batch=4, steps=8, lr=1e-2, optimiser="adamw", warmup=0.1
    )


def run(config, data, directory, execution=QUICK, observer=None):
    with ranks_of(execution) as ranks:
        return train_lm(config, execution, data, directory, ranks, observer)


def interrupt_at(step):
    def interrupt(run, report):
        if report.step == step:
            raise KeyboardInterrupt

    return interrupt


@pytest.fixture(scope="module")
def full_run(config, data, tmp_path_factory):
    """An uninterrupted run."""
    directory = tmp_path_factory.mktemp("full_run")
    return run(config, data, directory), directory


def test_a_run_reduces_the_loss_and_saves_a_model(full_run, config, data):
    result, directory = full_run
    assert losses(directory)[-1] < losses(directory)[0] - 0.3
    assert result.tokens == 8 * 4 * 24
    saved = load_model(directory / "final")
    assert saved.about["train_length"] == 24
    assert saved.tokenizer_file.read_text() == data.tokenizer.read_text()
    with ranks_of(QUICK) as ranks:
        quality = measure_quality(
            Scored(saved.model),
            data.split("validation"),
            ranks,
            length=24,
            batch=3,
            limit=0,
            reset=True,
            bf16=False,
        )
    assert quality.loss == pytest.approx(result.validation_loss, rel=1e-5)
    assert quality.tokens == data.meta.splits["validation"].predictions
    assert quality.bits_per_byte == pytest.approx(
        quality.loss / np.log(2) * quality.tokens / data.meta.splits["validation"].bytes
    )
    assert sorted(path.name for path in (directory / "checkpoints").iterdir()) == [
        "step-00000006",
        "step-00000008",
    ]
    for line in metrics(directory):
        assert "loss" not in line or (line["tokens_per_second"] > 0 and line["utilisation"] > 0)
    assert run(config, data, directory, observer=lambda *_: pytest.fail("trained again")) == result


@pytest.mark.parametrize("stop", [1, 4, 7])
def test_an_interrupted_run_resumes_to_the_same_losses(tmp_path, config, data, full_run, stop):
    with pytest.raises(KeyboardInterrupt):
        run(config, data, tmp_path, observer=interrupt_at(stop))
    # A killed run may leave a partial checkpoint.
    (tmp_path / "checkpoints" / "step-00000005.part").mkdir(parents=True)
    result = run(config, data, tmp_path)
    assert losses(tmp_path) == losses(full_run[1])
    assert not list(tmp_path.glob("checkpoints/*.part"))
    assert replace(result, seconds=0) == replace(full_run[0], seconds=0)
    ours, theirs = (
        load_model(directory / "final").model.state_dict() for directory in (tmp_path, full_run[1])
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.parametrize(
    "change",
    [{"accumulate": 2}, {"checkpointing": True}, {"accumulate": 4, "checkpointing": True}],
    ids=str,
)
def test_accumulation_and_checkpointing_do_not_change_losses(
    tmp_path, config, data, full_run, change
):
    run(config, data, tmp_path, replace(QUICK, **change))
    np.testing.assert_allclose(losses(tmp_path), losses(full_run[1]), atol=1e-5)


@pytest.mark.slow  # compiling takes a minute
def test_compilation_does_not_change_losses(tmp_path, data):
    """The runs use separate processes, because shape checks cannot be compiled."""
    sizes = [
        "--preset",
        "180k-bdlru-m4",
        "--length",
        "24",
        "--batch",
        "2",
        "--steps",
        "3",
        "--peak-tflops",
        "1",
    ]
    for name, option in (("plain", "--no-compile"), ("compiled", "--compile")):
        arguments = [
            "lm",
            "train",
            str(data.directory),
            *sizes,
            option,
            "--out",
            str(tmp_path / name),
        ]
        subprocess.run(
            [sys.executable, "-m", "statemix", *arguments], check=True, stdout=subprocess.DEVNULL
        )
    np.testing.assert_allclose(losses(tmp_path / "compiled"), losses(tmp_path / "plain"), atol=1e-5)


def test_bfloat16_hardly_changes_losses(tmp_path, config, data, full_run):
    run(replace(config, bf16=True), data, tmp_path)
    np.testing.assert_allclose(losses(tmp_path), losses(full_run[1]), atol=0.05)
    assert losses(tmp_path) != losses(full_run[1])


def test_validation_during_training(tmp_path, config, data):
    run(config, data, tmp_path, replace(QUICK, validate_every=4, validation_tokens=50))
    assert [line["step"] for line in metrics(tmp_path) if "perplexity" in line] == [4, 8]


def test_a_checkpoint_holds_the_weights_of_its_step(tmp_path, config, data):
    """A checkpoint that is written during later steps holds the weights of its own step."""
    seen = {}

    def look(run, report):
        seen[run.step] = {name: x.clone() for name, x in run.scored.state_dict().items()}

    run(config, data, tmp_path, observer=look)
    (file,) = (tmp_path / "checkpoints" / "step-00000006").glob("*.safetensors")
    saved = load_file(file)
    for name, x in seen[6].items():
        torch.testing.assert_close(saved[f"model.{name}"], x, rtol=0, atol=0)


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path, config, data, monkeypatch):
    calls = iter(range(100))
    forward = Scored.forward
    monkeypatch.setattr(
        Scored,
        "forward",
        lambda *args: forward(*args) * (float("nan") if next(calls) == 4 else 1.0),
    )
    with pytest.raises(
        FloatingPointError,
        match=r"The loss is nan at step 4 \(batch 4, windows \d+, .*last good checkpoint is "
        r".*step-00000003",
    ):
        run(config, data, tmp_path)
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    assert len(losses(tmp_path)) == 4
    assert run(config, data, tmp_path).steps == 8  # and the run can resume


def test_another_run_is_not_overwritten(full_run, config, data, tmp_path):
    _, directory = full_run
    before = (directory / "config.json").read_text()
    with pytest.raises(ValueError, match="holds the result of another run"):
        run(replace(config, lr=1.0), data, directory)
    (tmp_path / "config.json").write_text(before)
    with pytest.raises(ValueError, match="holds another run"):
        run(replace(config, lr=1.0), data, tmp_path)
    with pytest.raises(ValueError, match="was started on another text"):
        run(replace(config, data="0123"), data, tmp_path)
    assert (directory / "config.json").read_text() == before


def test_an_error_names_a_damaged_checkpoint(tmp_path, config, data):
    run(config, data, tmp_path)
    (tmp_path / "result.json").unlink()
    (file,) = (tmp_path / "checkpoints" / "step-00000008").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(
        ValueError,
        match=r"The checkpoint .*step-00000008 cannot be read .* Delete it to resume from the "
        r"one before it",
    ):
        run(config, data, tmp_path)


def test_an_error_names_a_damaged_state_or_result(tmp_path, config, data, full_run):
    shutil.copytree(full_run[1], tmp_path / "run")
    result, state = (
        tmp_path / "run" / name for name in ("result.json", "checkpoints/step-00000008/state.json")
    )
    for damage in ("", '{"id": "x"}', "[1]"):
        result.write_text(damage)
        with pytest.raises(
            ValueError, match=r"result.json is damaged: .* Delete it to write it again"
        ):
            run(config, data, tmp_path / "run")
    result.unlink()
    for damage in ("", "{}", "[]", '{"step": "x", "seconds": 1}'):
        state.write_text(damage)
        with pytest.raises(
            ValueError,
            match=r"step-00000008/state.json is damaged: .* Delete .*step-00000008 to resume "
            r"from the checkpoint",
        ):
            run(config, data, tmp_path / "run")
    shutil.rmtree(state.parent)
    assert replace(run(config, data, tmp_path / "run"), seconds=0) == replace(
        full_run[0], seconds=0
    )


def test_a_checkpoint_of_another_run_raises(tmp_path, config, data, full_run):
    shutil.copytree(full_run[1], tmp_path / "run")
    (tmp_path / "run" / "result.json").unlink()
    path = tmp_path / "run" / "checkpoints" / "step-00000008" / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "config": "0123"}))
    with pytest.raises(
        ValueError,
        match=rf"step-00000008 is of another run \(id 0123, this one is {config.id}\). Choose "
        rf"another --out",
    ):
        run(config, data, tmp_path / "run")
    # The first versions wrote these two fields only.
    path.write_text(json.dumps({"step": state["step"], "seconds": state["seconds"]}))
    assert run(config, data, tmp_path / "run") == full_run[0]


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "checkpoints/step-00000008/state.json", "final/config.json"]
)
def test_a_directory_without_a_config_is_not_touched(tmp_path, config, data, full_run, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(full_run[1] / name, path)
    before = path.read_bytes()
    with pytest.raises(
        ValueError,
        match=r"has (metrics.jsonl|.*step-00000008|final/config.json), but no config.json .* "
        r"Choose another --out",
    ):
        run(config, data, tmp_path)
    assert [found for found in tmp_path.rglob("*") if found.is_file()] == [path]
    assert path.read_bytes() == before


def test_existing_files_raise_before_training(tmp_path, config, data, full_run):
    """Unrelated files, a prepared text, or another config raise; a file named `lock` is kept."""
    (tmp_path / "a" / "final").mkdir(parents=True)
    shutil.copyfile(full_run[1] / "config.json", tmp_path / "a" / "config.json")
    (tmp_path / "a" / "final" / "thesis.tex").write_text("years of work")
    with pytest.raises(
        ValueError,
        match=r"final holds thesis.tex, which is not a file of a model, and would be lost. "
        r"Move it away",
    ):
        run(config, data, tmp_path / "a")
    assert (tmp_path / "a" / "final" / "thesis.tex").read_text() == "years of work"
    shutil.copytree(data.directory, tmp_path / "b")
    with pytest.raises(
        ValueError, match=r"b holds a prepared text \(data.json\). Choose another --out"
    ):
        run(config, data, tmp_path / "b")
    for content in ('{"name": "mine"}', "[]", "{"):
        (tmp_path / "c").mkdir(exist_ok=True)
        (tmp_path / "c" / "config.json").write_text(content)
        with pytest.raises(
            ValueError, match=r"c/config.json is damaged, or not the config of a run: "
        ):
            run(config, data, tmp_path / "c")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "lock").write_text("mine")
    assert run(replace(config, steps=1), data, tmp_path / "d").steps == 1
    assert (tmp_path / "d" / "lock").read_text() == "mine"


def test_data_and_tokenizer_are_checked_before_training(tmp_path, config, data):
    copy = tmp_path / "data"
    shutil.copytree(data.directory, copy)
    shard = np.fromfile(copy / "validation-00000.bin", "<u2")
    shard[5] = 60_000
    shard.tofile(copy / "validation-00000.bin")
    with pytest.raises(
        ValueError,
        match=r"validation-00000.bin has the token id 60000, but its text has 300 tokens",
    ):
        run(config, open_data(copy), tmp_path / "run")
    shutil.copyfile(data.directory / "validation-00000.bin", copy / "validation-00000.bin")
    np.full_like(np.fromfile(copy / "train-00000.bin", "<u2"), 5).tofile(copy / "train-00000.bin")
    with pytest.raises(
        ValueError,
        match=r"train-00000.bin is damaged: the hash of its tokens does not match. Copy it again",
    ):
        run(config, open_data(copy), tmp_path / "run")
    shutil.copyfile(data.directory / "train-00000.bin", copy / "train-00000.bin")
    (copy / "tokenizer.json").write_text("{}")
    config = replace(config, data=digest(open_data(copy)))
    with pytest.raises(
        ValueError,
        match=r"tokenizer.json is not a tokenizer that the package `tokenizers` can read",
    ):
        run(config, open_data(copy), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_only_one_process_can_train_a_run(tmp_path, config, data, monkeypatch):
    def enter_too(*_):
        with pytest.raises(ValueError, match="is being trained by another process"):
            run(config, data, tmp_path)

    short = replace(config, steps=1)
    config = replace(config, steps=2)
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        enter_too()
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    run(config, data, tmp_path, observer=enter_too)
    monkeypatch.setattr(
        fcntl,
        "flock",
        lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "No locks available")),
    )
    assert run(short, data, tmp_path / "elsewhere").steps == 1


def test_a_full_disk_raises(tmp_path, config, data):
    def fill(run, report):
        while report.step == 5 and not (tmp_path / "checkpoints" / "step-00000003").exists():
            time.sleep(0.01)  # until the checkpoint is written
        if report.step == 5:
            limit.__enter__()

    limit = small_files(8192)
    try:
        with pytest.raises(
            ValueError,
            match=r"No checkpoint could be written to .*checkpoints \(.+\). The last good one "
            r"is .*step-00000003. Free some disk",
        ):
            run(config, data, tmp_path, observer=fill)
    finally:
        limit.__exit__(None, None, None)
    assert run(config, data, tmp_path).steps == 8


def test_a_removed_model_is_restored(tmp_path, config, data, full_run):
    shutil.copytree(full_run[1], tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "final")
    assert run(config, data, tmp_path / "run") == full_run[0]
    ours, theirs = (
        load_model(directory / "final").model.state_dict()
        for directory in (tmp_path / "run", full_run[1])
    )
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    lines = [
        [json.loads(line)["step"] for line in (d / "metrics.jsonl").read_text().splitlines()]
        for d in (tmp_path / "run", full_run[1])
    ]
    assert lines[0] == lines[1], "each validation occurs once"
    for name in ("final", "checkpoints"):
        shutil.rmtree(tmp_path / "run" / name)
    with pytest.raises(
        ValueError,
        match=r"is finished, but final/ is missing, and there is no checkpoint .* Delete "
        r".*result.json to train",
    ):
        run(config, data, tmp_path / "run")


def test_weights_that_are_not_finite_raise(tmp_path, config, data, full_run):
    def overflow(run, report):
        if report.step == 6:
            run.scored.model.norm.weight.data[3] = float("inf")

    with pytest.raises(
        FloatingPointError,
        match=r"The weights are not finite after step 6. .*The last good checkpoint is "
        r".*step-00000003",
    ):
        run(config, data, tmp_path / "run", observer=overflow)
    assert run(config, data, tmp_path / "run").loss == full_run[0].loss
    (file,) = (tmp_path / "run" / "checkpoints" / "step-00000008").glob("*.safetensors")
    with safe_open(file, "pt") as opened:
        noted = opened.metadata()
    tensors = load_file(file)
    tensors["model.model.norm.weight"][3] = float("nan")
    save_file(tensors, file, noted)
    state = json.loads((file.parent / "state.json").read_text())
    state["files"][file.name] = hash_of_file(file)
    (file.parent / "state.json").write_text(json.dumps(state))
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(
        FloatingPointError,
        match=r"step-00000008 has weights that are not finite. Delete it to resume from the "
        r"one before",
    ):
        run(config, data, tmp_path / "run")


@pytest.mark.parametrize(
    ("change", "execution", "message"),
    [
        (
            {"batch": 6},
            {"accumulate": 4},
            r"--batch 6 must be a multiple of 4: 1 ranks that read data × 4 parts .* Try --batch 8",
        ),
        ({"length": 10**6}, {}, r"too few for one sequence of --length 1000000"),
        ({}, {"context": 2}, r"The number of ranks, 1, must be a multiple of --context 2"),
    ],
)
def test_sizes_that_do_not_divide_raise(tmp_path, config, data, change, execution, message):
    with pytest.raises(ValueError, match=message):
        run(replace(config, **change), data, tmp_path, replace(QUICK, **execution))
    assert not list(tmp_path.iterdir())


def test_a_model_with_too_small_a_vocabulary_raises(tmp_path, config, data):
    small = replace(config, model=replace(config.model, vocab=100))
    with pytest.raises(
        ValueError, match="different tokens, but the vocabulary of the model has 100"
    ):
        run(small, data, tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "`steps` must be at least 1, got 0"),
        ({"lr": -1.0}, "`lr` must be above zero"),
        ({"clip": -1.0}, "`clip` must be finite and not negative"),
        ({"warmup": -0.5}, "`warmup` must be finite and not negative, got -0.5"),
        ({"warmup": NAN}, "`warmup` must be a number, got nan"),
        *(
            ({name: NAN}, f"`{name}` must be a number, got nan")
            for name in ("lr", "min_lr", "matrix_lr", "weight_decay", "clip")
        ),
        ({"lr": INF}, "`lr` must be above zero and finite, got inf"),
    ],
)
def test_invalid_configs_raise(config, change, message):
    with pytest.raises(ValueError, match=message):
        replace(config, **change)


@pytest.mark.parametrize(
    "change",
    [
        {"validate_every": -1},
        {"validation_tokens": -5},
        {"peak_flops": -1.0},
        {"peak_flops": INF},
        {"timeout": NAN},
        {"timeout": 0.0},
    ],
    ids=str,
)
def test_invalid_executions_raise(change):
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=f"`{name}` must be .*, got {value}"):
        Execution(**change)


def test_configs_convert_to_json_and_back(config):
    assert run_config_from_dict(json.loads(config.to_json())) == config
    assert replace(config, seed=1).id != config.id
    with pytest.raises(
        ValueError, match="Unknown fields in the config of a language-model run: lrr"
    ):
        run_config_from_dict({**json.loads(config.to_json()), "lrr": 1})
    with pytest.raises(ValueError, match="Unknown optimiser 'sgd'. Available: adamw, muon"):
        replace(config, optimiser="sgd")
    with pytest.raises(ValueError, match="newer statemix"):
        run_config_from_dict({**json.loads(config.to_json()), "version": 99})
    with pytest.raises(ValueError, match="Unknown parallel 'ring'. Available: ddp, fsdp"):
        Execution(parallel="ring")
    with pytest.raises(ValueError, match="`keep` must be at least 1"):
        Execution(keep=0)


def test_new_fields_do_not_change_ids(config):
    # The defaults, and the id, of the first version, which had one optimiser.
    first = LMRunConfig(LMConfig(300), "x", 512, 16, lr=3e-3, optimiser="adamw", warmup=0.1)
    assert first.id == "d69539c3fb29d7d1"
    assert (
        len({first.id, replace(first, optimiser="muon").id, replace(first, matrix_lr=0.1).id}) == 3
    )
    assert "mixers" not in json.loads(first.to_json())["model"]
    hybrid = replace(first, model=replace(first.model, mixers=("bdlru", "attention")))
    assert hybrid.id != first.id
    assert run_config_from_dict(json.loads(hybrid.to_json())) == hybrid


def test_biases_and_norms_do_not_decay(config):
    model = LanguageModel(
        replace(config.model, options={**config.model.options, "learn_initial_state": True})
    )
    optimiser = make_optimiser(model, config)
    kept = {name for name, p in model.named_parameters() if not decays(name, p)}
    assert {name.rpartition(".")[2] for name in kept} == {"bias", "weight", "h0"}
    assert all("norm" in name for name in kept if name.endswith("weight"))
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(
        list(model.parameters())
    )
    assert [group["weight_decay"] for group in optimiser.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (30, 30), (1, 7), (330, 32)], ids=str)
def test_orthogonal_matrices(shape):
    """The iteration on Gram matrices equals Jordan's.

    It moves singular values close to one and keeps singular vectors.
    """
    torch.manual_seed(0)
    G = torch.randn(shape, dtype=torch.float64)
    X = G / G.norm()
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    torch.testing.assert_close(orthogonal(G), X, rtol=0, atol=1e-6)
    torch.testing.assert_close(orthogonal(G.float()).double(), X, rtol=0, atol=1e-4)
    singular = torch.linalg.svdvals(orthogonal(G))
    assert 0.3 < singular.min() <= singular.max() < 1.3
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    turned = U.T @ orthogonal(G) @ Vh.T
    torch.testing.assert_close(turned, torch.diag(turned.diagonal()), rtol=0, atol=1e-6)


def test_muon_updates_matrices_inside_blocks(config):
    model = LanguageModel(config.model)
    optimiser = make_optimiser(model, replace(config, optimiser="muon", lr=1e-3, matrix_lr=0.02))
    assert sum(len(group["params"]) for group in optimiser.param_groups) == len(
        list(model.parameters())
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    torch.manual_seed(1)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    optimiser.step()
    for name, p in model.named_parameters():
        decay = 0.1 if decays(name, p) else 0.0
        if p.ndim == 2 and name.startswith("blocks") and "bias" not in name:
            rate = 0.02
            change = (1 - rate * decay) * before[name] - p.detach()
            # The first momentum is parallel to the gradient.
            expected = rate * max(1, p.shape[0] / p.shape[1]) ** 0.5 * orthogonal(p.grad)
        else:
            rate = 1e-3
            change = (1 - rate * decay) * before[name] - p.detach()
            expected = rate * p.grad.sign()  # and so is that of Adam, per entry
        torch.testing.assert_close(change, expected, rtol=0, atol=2e-2 * rate)


def test_muon_takes_closures_and_restores_its_state(config):
    """Muon takes a closure, and its state can be saved and loaded."""

    def make():
        torch.manual_seed(0)
        model = LanguageModel(config.model)
        optimiser = make_optimiser(model, replace(config, optimiser="muon"))

        def closure():
            optimiser.zero_grad()
            loss = model(torch.arange(8).view(1, 8))[0].square().mean()
            loss.backward()
            return loss

        return model, optimiser, closure

    model, optimiser, closure = make()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    first = optimiser.step(closure)
    assert all(
        (p != before[name]).any()
        for name, p in model.named_parameters()
        if name.endswith("W_g.weight")
    )
    assert optimiser.step(closure) < first
    other, fresh, again = make()
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(copy.deepcopy(optimiser.state_dict()))
    assert optimiser.step(closure) == fresh.step(again)
    torch.testing.assert_close(other.state_dict(), model.state_dict(), rtol=0, atol=0)
    matrices = [p for name, p in model.named_parameters() if is_inner_matrix(name, p)]
    assert matrices
    assert all("exp_avg_sq" not in optimiser.state[p] for p in matrices)


@pytest.mark.parametrize("stop", [4, 7])
def test_an_interrupted_run_with_muon_resumes_to_the_same_losses(
    tmp_path, config, data, full_run, stop
):
    config = replace(config, optimiser="muon")
    run(config, data, tmp_path / "full")
    with pytest.raises(KeyboardInterrupt):
        run(config, data, tmp_path / "cut", observer=interrupt_at(stop))
    run(config, data, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "full")
    (file,) = (tmp_path / "cut" / "checkpoints" / "step-00000008").glob("*.safetensors")
    names = load_file(file).keys()
    assert (
        sum(name.startswith("exp_avg.") for name in names)
        > sum(name.startswith("exp_avg_sq.") for name in names)
        > 0
    )
    assert losses(tmp_path / "full")[2:] != losses(full_run[1])[2:]


@pytest.mark.parametrize("stop", [4, 7])
def test_an_interrupted_hybrid_resumes_to_the_same_losses(tmp_path, config, data, stop):
    hybrid = replace(config.model, layers=3, mixers=("bdlru", "bdlru", "attention"))
    config = replace(config, model=hybrid)
    run(config, data, tmp_path / "full")
    with pytest.raises(KeyboardInterrupt):
        run(config, data, tmp_path / "cut", observer=interrupt_at(stop))
    run(config, data, tmp_path / "cut")
    assert losses(tmp_path / "cut") == losses(tmp_path / "full")
    saved = [load_model(tmp_path / name / "final").model for name in ("cut", "full")]
    assert saved[0].config == hybrid
    for ours, theirs in zip(*(model.parameters() for model in saved), strict=True):
        assert torch.equal(ours, theirs)


def test_the_learning_rate_warms_up_and_follows_a_cosine(config):
    schedule = replace(config, steps=21, warmup=0.2, lr=1.0, min_lr=0.1)
    rates = [learning_rate(schedule, step) for step in range(21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[12] == pytest.approx(0.55)
    assert rates[20] == pytest.approx(0.1)


def test_flops_are_six_per_weight(config):
    model = LanguageModel(config.model)
    weights = sum(p.numel() for p in model.parameters()) - model.embedding.weight.numel()
    gates = 2 * 3 * 2 * 3  # 2 layers of 3 blocks of 2 rows of 3
    assert flops_per_token(model, 24) == 6 * (weights + gates)
    attention = LanguageModel(replace(config.model, mixer="attention", options={"heads": 2}))
    weights = sum(p.numel() for p in attention.parameters()) - model.embedding.weight.numel()
    seen = 2 * (16 + 16) * (1 + 24) / 2  # 2 layers: a query reads keys and values of width 16
    assert flops_per_token(attention, 24) == 6 * (weights + seen)
    windowed = replace(config.model, mixer="attention", options={"heads": 2, "window": 1})
    assert flops_per_token(LanguageModel(windowed), 24) == 6 * (weights + 2 * (16 + 16))


def test_train_from_the_command_line(tmp_path, monkeypatch, capsys, data):
    monkeypatch.chdir(tmp_path)
    command = ["lm", "train", str(data.directory)]
    arguments = [*command, *tiny_model(batch=2), "--steps", "3", "--validation-tokens", "64"]
    main([*arguments, "--compare-ngram", "--out", "mine"])
    printed = capsys.readouterr().out
    assert "Kneser–Ney of order 5 over tokens" in printed
    assert "Kneser–Ney of order 5 over bytes" in printed
    assert (tmp_path / "mine" / "final" / "model.safetensors").is_file()
    main(arguments)
    (directory,) = (tmp_path / "runs" / "lm").iterdir()
    assert (directory / "result.json").is_file()
    with pytest.raises(SystemExit, match="holds the result of another run"):
        main([*arguments, "--lr", "1", "--out", "mine"])
    with pytest.raises(SystemExit, match="holds no prepared text"):
        main(["lm", "train", str(tmp_path)])
    with pytest.raises(SystemExit, match="too few for one sequence of --length 100000"):
        main([*arguments, "--length", "100000", "--out", "refused"])
    assert not (tmp_path / "refused").exists()
    with pytest.raises(SystemExit, match="Unknown preset '3m'"):
        main([*command, "--preset", "3m"])
    with pytest.raises(SystemExit, match="--minutes must be above zero, got 0"):
        main([*command, "--minutes", "0"])
    with pytest.raises(SystemExit, match="`minutes` must be above zero and finite, got inf"):
        main([*command, "--minutes", "inf"])


def test_a_pattern_of_mixers_from_the_command_line(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    command = ["lm", "train", str(data.directory), *tiny_model(batch=2), "--steps", "1"]
    main([*command, "--mixers", "bdlru", "attention:heads=2,window=3", "--layers", "3"])
    (directory,) = (tmp_path / "runs" / "lm").iterdir()
    model = read_config(directory).model
    assert [str(choice) for choice in model.layer_mixers] == [
        "bdlru(block_size=4, n_blocks=16)",
        "attention(heads=2, window=3)",
        "bdlru(block_size=4, n_blocks=16)",
    ]
    with pytest.raises(SystemExit, match="Unknown mixer 'attn'"):
        main([*command, "--mixers", "bdlru", "attn", "--layers", "2", "--out", "other"])


@pytest.mark.parametrize("mixers", ["bdlru", 3, [{"heads": 2}], [None]])
def test_a_pattern_must_list_mixers(mixers):
    with pytest.raises(ValueError, match="must list the mixers|as an object with the field"):
        LMConfig(10, mixers=mixers)


def test_minutes_become_steps(tmp_path, monkeypatch, data, capsys):
    monkeypatch.chdir(tmp_path)
    command = ["lm", "train", str(data.directory), *tiny_model(batch=2)]
    main([*command, "--minutes", "0.005", "--out", "mine"])
    steps = read_config(tmp_path / "mine").steps
    assert len(losses(tmp_path / "mine")) == steps
    assert "already holds a run" not in capsys.readouterr().err
    main([*command, "--minutes", "0.01", "--out", "mine"])
    assert read_config(tmp_path / "mine").steps == steps
    assert (
        f"mine already holds a run of {steps} steps; --minutes is ignored"
        in capsys.readouterr().err
    )


def test_different_minutes_are_different_runs(tmp_path, monkeypatch, data):
    monkeypatch.chdir(tmp_path)
    command = ["lm", "train", str(data.directory), *tiny_model(batch=2)]
    for length in (
        ["--minutes", "0.0005"],
        ["--minutes", "0.001"],
        ["--minutes", "0.0005"],
        ["--steps", "1"],
    ):
        main([*command, *length])
    names = sorted(path.name for path in (tmp_path / "runs" / "lm").iterdir())
    assert len(names) == 3
    assert [name.endswith(("-0.0005min", "-0.001min")) for name in names].count(True) == 2


def test_a_restart_removes_checkpoints_that_a_killed_run_left(tmp_path):
    def saved(step, *, complete=True):
        path = tmp_path / f"step-{step:08d}"
        path.mkdir()
        (path / "shard.safetensors").write_text("x")
        if complete:
            (path / "state.json").write_text("{}")

    for step in (4, 12, 16, 20):
        saved(step)
    saved(8, complete=False)
    saved(24, complete=False)  # newer than the last complete one: left for the user to look at
    with ranks_of(Execution()) as ranks:
        newest = Store(tmp_path, ranks.saving, keep=2).newest()
    assert newest == tmp_path / "step-00000020"
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["step-00000016", "step-00000020", "step-00000024"]
