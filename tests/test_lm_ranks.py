"""Training on two ranks: the losses of one process, shared checkpoints, and a killed rank."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from lm_runs import losses, tiny_model
from ranks import on_ranks
from texts import little_data

from statemix.config.lm import Execution, LMRunConfig
from statemix.data import open_data
from statemix.lm import load_model
from statemix.lm.ranks import ranks_of
from statemix.lm.step import digest
from statemix.lm.trainer import train_lm
from statemix.models.lm import LMConfig

pytest.importorskip(
    "tokenizers", reason="text is encoded by the package tokenizers, of the extra `lm`"
)
STEPS = 20
SAVING = Execution(save_every=10, peak_flops=1e9)
WAYS = {
    "ddp": Execution(),
    "ddp, accumulated": Execution(accumulate=2),
    "fsdp": Execution(parallel="fsdp"),
    "fsdp, accumulated, checkpointing": Execution(
        parallel="fsdp", accumulate=2, checkpointing=True
    ),
    "context": Execution(context=2),
    "context, fsdp": Execution(context=2, parallel="fsdp"),
}
MIXERS = {
    "bdlru": {"n_blocks": 3, "block_size": 2, "learn_initial_state": True},
    "hlru": {"n_channels": 4, "order": 3},
    "hybrid": {"n_blocks": 3, "block_size": 2},
}
MIXERS_OF = {"context": ("bdlru", "hlru"), "fsdp": ("bdlru", "hybrid")}
HYBRID = ("bdlru", {"mixer": "attention", "heads": 2})


def config_of(data, mixer):
    mixers = HYBRID if mixer == "hybrid" else ()
    name = "bdlru" if mixers else mixer
    model = LMConfig(data.meta.vocab, 16, 2, name, MIXERS[mixer], mixers=mixers)
    settings = {"lr": 1e-2, "optimiser": "adamw", "warmup": 0.1}
    # The 25 tokens of a sequence do not divide evenly among two ranks.
    return LMRunConfig(model, digest(data), length=25, batch=4, steps=STEPS, **settings)


def train(config, data, directory, execution=SAVING):
    with ranks_of(execution) as ranks:
        return train_lm(config, execution, data, directory, ranks)


def train_every_way(rank, count, directory, data_directory):
    """Train BD-LRU in every way, and H-LRU with shared sequences; some runs stop early."""
    data = open_data(data_directory)
    config = config_of(data, "bdlru")
    for way, execution in WAYS.items():
        for mixer in MIXERS_OF.get(way, ("bdlru",)):
            saving = replace(execution, save_every=10, peak_flops=1e9)
            train(config_of(data, mixer), data, directory / f"{way} {mixer}", saving)

    execution = replace(WAYS["fsdp"], peak_flops=1e9)
    train(replace(config, bf16=True), data, directory / "fsdp bf16", execution)
    for way in ("ddp", "fsdp"):
        execution = replace(WAYS[way], peak_flops=1e9)
        train(replace(config, optimiser="muon"), data, directory / f"muon {way}", execution)

    def stop(run, report):
        if report.step == 14:
            raise KeyboardInterrupt

    for way in ("ddp", "fsdp"):
        execution = replace(WAYS[way], save_every=10, peak_flops=1e9)
        with ranks_of(execution) as ranks, suppress(KeyboardInterrupt):
            train_lm(config, execution, data, directory / f"cut {way}", ranks, stop)

    with (
        ranks_of(WAYS["context"]) as ranks,
        pytest.raises(ValueError, match="context parallelism\\), got Attention. Train this model"),
    ):
        train_lm(config_of(data, "hybrid"), WAYS["context"], data, directory / "refused", ranks)

    # Both ranks raise this error.
    (directory / "foreign").mkdir(exist_ok=True)
    (directory / "foreign" / "metrics.jsonl").write_text("")
    with (
        ranks_of(execution) as ranks,
        pytest.raises(ValueError, match="has metrics.jsonl, but no config.json"),
    ):
        train_lm(config, execution, data, directory / "foreign", ranks)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return little_data(tmp_path_factory.mktemp("little"))


@pytest.fixture(scope="module")
def one_process(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("one")
    results = {mixer: train(config_of(data, mixer), data, directory / mixer) for mixer in MIXERS}
    train(replace(config_of(data, "bdlru"), optimiser="muon"), data, directory / "muon")
    return directory, results


@pytest.fixture(scope="module")
def two_ranks(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("two")
    on_ranks(2, train_every_way, directory, directory, data.directory)
    return directory


@pytest.mark.parametrize(
    ("way", "mixer"),
    [*((way, "bdlru") for way in WAYS), ("context", "hlru"), ("fsdp", "hybrid")],
)
def test_two_ranks_match_the_losses_of_one_process(one_process, two_ranks, way, mixer):
    directory, results = one_process
    ours = two_ranks / f"{way} {mixer}"
    assert len(losses(ours)) == STEPS
    np.testing.assert_allclose(losses(ours), losses(directory / mixer), rtol=0, atol=1e-5)
    result = json.loads((ours / "result.json").read_text())
    assert result["validation_loss"] == pytest.approx(results[mixer].validation_loss, abs=1e-5)
    assert (
        load_model(ours / "final").model.config
        == load_model(directory / mixer / "final").model.config
    )


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_ranks_match_one_process_with_muon(one_process, two_ranks, way):
    directory, _ = one_process
    np.testing.assert_allclose(
        losses(two_ranks / f"muon {way}"), losses(directory / "muon"), rtol=0, atol=1e-5
    )


def test_bfloat16_hardly_changes_the_losses_of_sharded_weights(one_process, two_ranks):
    directory, _ = one_process
    np.testing.assert_allclose(
        losses(two_ranks / "fsdp bf16"), losses(directory / "bdlru"), rtol=0, atol=0.05
    )
    assert losses(two_ranks / "fsdp bf16") != losses(directory / "bdlru")
    assert load_model(two_ranks / "fsdp bf16" / "final").model.head.weight.dtype == torch.float32


@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_one_process_resumes_checkpoints_of_two_ranks(one_process, two_ranks, data, way):
    directory, results = one_process
    assert sorted(path.name for path in (two_ranks / f"cut {way}" / "checkpoints").iterdir()) == [
        "step-00000010"
    ]
    result = train(config_of(data, "bdlru"), data, two_ranks / f"cut {way}")
    np.testing.assert_allclose(
        losses(two_ranks / f"cut {way}"), losses(directory / "bdlru"), rtol=0, atol=1e-5
    )
    assert result.validation_loss == pytest.approx(results["bdlru"].validation_loss, abs=1e-5)


def start_rank(rank, port, arguments):
    environment = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    command = [sys.executable, "-m", "statemix", "lm", "train", *arguments]
    return subprocess.Popen(
        command, env={**os.environ, **environment}, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_killed_rank_stops_the_other_and_loses_no_checkpoint(tmp_path, data):
    """If one rank is killed, the other fails within a minute, and one process can resume."""
    sizes = [*tiny_model(batch=4), "--steps", "400"]
    common = [str(data.directory), *sizes, "--save-every", "20", "--validation-tokens", "64"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    broken = tmp_path / "broken"
    processes = [start_rank(rank, port, [*common, "--out", str(broken)]) for rank in range(2)]
    try:
        deadline = time.monotonic() + 120
        while not list(broken.glob("checkpoints/step-*[0-9]")) and time.monotonic() < deadline:
            assert all(process.poll() is None for process in processes), processes[0].stderr.read()
            time.sleep(0.05)
        processes[1].send_signal(signal.SIGKILL)
        _, said = processes[0].communicate(timeout=60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stderr.close()
    assert processes[0].returncode != 0
    assert "Rank 0 stopped waiting for another" in said
    assert "Run the same command again to resume" in said
    assert not (broken / "result.json").exists()
    from statemix.cli import main

    for directory in (broken, tmp_path / "unbroken"):
        main(["lm", "train", *common, "--out", str(directory)])
    assert len(losses(broken)) == 400
    np.testing.assert_allclose(losses(broken), losses(tmp_path / "unbroken"), rtol=0, atol=1e-5)
