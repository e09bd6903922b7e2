"""The bench command at small sizes; no test asserts a time."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from statemix import BDLRU, HLRU
from statemix.bench import (
    error,
    gpu,
    lm_step,
    memory,
    packages,
    rivals,
    speed,
    step,
    task_step,
    throughput,
)
from statemix.bench.foreign import FOREIGN
from statemix.bench.measure import Contest, Row, append, hold
from statemix.bench.tables import markdown, read_rows
from statemix.cli import main
from statemix.commands.bench import ANYWHERE, LM_MODELS, RIVALS
from statemix.extras import install_command
from statemix.kernels.cpu.library import Missing, load
from statemix.models import find_preset
from statemix.models.lm import count_parameters
from statemix.report.throughput import Line, number_of, throughput_figure, tokens_per_second

SMALL = [
    "--batch",
    "2",
    "--length",
    "8",
    "--blocks",
    "8",
    "--block-sizes",
    "1",
    "3",
    "--rounds",
    "1",
]
needs_kernel = pytest.mark.skipif(isinstance(load(), Missing), reason="no compiled CPU library")


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.usefixtures("unchecked")
def test_scan_part_times_every_rival(capsys, tmp_path):
    out = tmp_path / "speed.jsonl"
    main(
        [
            "bench",
            "speed",
            "--parts",
            "scan",
            *SMALL,
            "--rivals",
            "hop_scan",
            "loop",
            "nn.LSTM",
            "--out",
            str(out),
        ]
    )
    assert "gated_block_scan" in capsys.readouterr().out
    rows = lines(out)
    assert [row["entrant"] for row in rows] == ["statemix", "hop_scan", "loop", "nn.LSTM"] * 2
    assert all(
        row["value"] > 0 and row["unit"] == "ms" and row["torch"] == torch.__version__
        for row in rows
    )
    assert [row["ratio"] for row in rows if row["entrant"] == "statemix"] == [1.0, 1.0]


@needs_kernel
def test_speed_measures_the_other_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(speed, "DRAM_SIZE", 1)
    out = tmp_path / "speed.jsonl"
    main(
        [
            "bench",
            "speed",
            "--parts",
            "kernel",
            "layer",
            "threads",
            "length",
            *SMALL,
            "--length",
            "64",
            "--out",
            str(out),
        ]
    )
    rows = lines(out)
    assert {row["part"] for row in rows} == {"kernel", "layer", "threads", "length"}
    assert {row["setting"] for row in rows if row["part"] == "kernel"} == {
        f"{layer} m = {m}, {way}"
        for layer in ("BD-LRU", "H-LRU")
        for m in (1, 3)
        for way in ("forward", "backward")
    }
    assert torch.get_num_threads() == 1


@pytest.mark.usefixtures("unchecked")
def test_throughput_figure(tmp_path, monkeypatch):
    """Throughput is measured at small sizes, and drawn."""
    for name, value in {
        "BLOCKS": 8,
        "LENGTH": 12,
        "STATES": 16,
        "SIZES": (1, 2),
        "LENGTHS": (8, 16),
    }.items():
        monkeypatch.setattr(throughput, name, value)
    main(
        [
            "bench",
            "speed",
            "--parts",
            "throughput",
            "--rivals",
            "loop",
            "--rounds",
            "1",
            "--out",
            str(tmp_path / "throughput.jsonl"),
        ]
    )
    rows = lines(tmp_path / "throughput.jsonl")
    settings = ["a: n = 8, m = 1, B = 1, T = 12", "a: n = 8, m = 2, B = 1, T = 12"]
    settings += [
        "b: 16 states, B = 1, T = 8",
        "b: 16 states, B = 1, T = 16",
        "c: layers of 2m-*, B = 1, T = 12",
    ]
    assert list(dict.fromkeys(row["setting"] for row in rows)) == settings
    assert [row["entrant"] for row in rows[:3]] == ["fused", "sequential", "parallel"]
    assert {"bdlru-m16", "hlru-m4", "lstm", "mamba2", "deltanet"} <= {
        row["entrant"] for row in rows
    }
    drawn = throughput_figure(tmp_path)
    assert [len(chart.series) for chart in drawn.charts] == [3, 2, 1]
    layers = [name for _, name in drawn.charts[2].x.ticks]
    assert {"BD-LRU, m = 16", "LSTM, torch's kernel", "Mamba-2, plain torch"} <= set(layers)
    assert throughput_figure(tmp_path / "none") is None
    line = Line("b: 16 states, B = 2, T = 8", "fused", 4.0, 1, "", "")
    assert tokens_per_second(line) == pytest.approx(4000)
    with pytest.raises(ValueError, match="must contain 'T = <number>'"):
        number_of("T", "B = 1")


def test_models_of_the_training_step_are_the_same_model():
    layers = {kind: kind(8, 3, 2) for kind in (BDLRU, step.HopScanBDLRU, step.LoopBDLRU)}
    x = torch.randn(2, 9, 8)
    truth = layers[BDLRU](x)
    for layer in layers.values():
        layer.load_state_dict(layers[BDLRU].state_dict())
        torch.testing.assert_close(layer(x), truth, rtol=1e-4, atol=1e-6)
    step.training_step(step.NoScanBDLRU, 2, 2, 8, 32, 16)()


def test_rivals_compute_the_same_scan():
    """Timings are comparable only if all rivals compute the same scan."""
    gates, v = rivals.inputs((2, 9, 3, 4))
    truth = rivals.ours(gates, v)
    for scan in (rivals.by_hop_scan, rivals.by_loop):
        torch.testing.assert_close(scan(gates, v), truth, rtol=1e-4, atol=1e-6)
    every = set(rivals.RIVALS) | set(rivals.COMPANION_RIVALS)
    assert every == {name for names in RIVALS.values() for name in names}
    assert set(rivals.PACKAGES) | set(ANYWHERE) == every


@pytest.mark.parametrize(
    ("package", "names"), [("mambapy", ["mamba.py"]), ("jax", ["jax scan", "jax associative_scan"])]
)
def test_optional_rivals_compute_the_same_gradient(package, names):
    pytest.importorskip(package, reason=f"{package} is only in the extra `bench`")
    sizes = (2, 9, 3, 1)
    truth = rivals.differentiated(rivals.ours, sizes)()
    for name in names:
        for theirs, ours in zip(rivals.RIVALS[name](sizes)(), truth, strict=True):
            torch.testing.assert_close(
                torch.as_tensor(theirs.tolist()).view_as(ours), ours, rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("m", [1, 3])
def test_torch_slices_computes_the_same_scan_and_gradient(m):
    pytest.importorskip("slices", reason="torch-slices needs Python 3.11")
    sizes = (2, 9, 3, m)
    truth = rivals.differentiated(rivals.ours, sizes)()
    for theirs, ours in zip(rivals.RIVALS["torch-slices"](sizes)(), truth, strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("m", [1, 4])
def test_torchlpc_computes_the_same_scan_gradient_and_layer(m):
    pytest.importorskip("torchlpc", reason="torchlpc is only in the extra `bench`")
    entrants = rivals.companion_contest((2, 9, 3, m), ["loop", "torchlpc"])
    assert list(entrants) == ["statemix", "torchlpc"]
    for theirs, ours in zip(entrants["torchlpc"](), entrants["statemix"](), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=1e-4, atol=1e-5)
    ours, theirs = HLRU(8, 3, m), packages.LPCHLRU(8, 3, m)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 9, 8)
    torch.testing.assert_close(theirs(x), ours(x), rtol=1e-4, atol=1e-6)


def test_the_companion_recurrence_is_timed_only_against_a_rival():
    assert rivals.companion_contest((2, 9, 3, 2), ["loop", "nn.LSTM"]) == {}
    assert not rivals.takes("torchlpc", (2, 9, 3, 2))


@pytest.mark.filterwarnings("ignore")  # of other packages
def test_packages_take_part_in_scans_and_layers(tmp_path):
    pytest.importorskip("slices", reason="torch-slices needs Python 3.11")
    pytest.importorskip("torchlpc", reason="torchlpc is only in the extra `bench`")
    out = tmp_path / "speed.jsonl"
    names = ["--rivals", "torch-slices", "torchlpc"]
    main(["bench", "speed", "--parts", "scan", "layer", *SMALL, *names, "--out", str(out)])
    found = {(row["part"], row["setting"], row["entrant"]) for row in lines(out)}
    for m in (1, 3):
        setting = f"(B, T, n, m) = (2, 8, 8, {m})"
        assert ("scan", setting, "torch-slices") in found
        assert ("scan", f"companion, {setting}", "torchlpc") in found
    setting = "d = 32, n = 8, m = 4, B = 2, T = 8"
    assert ("layer", setting, "torch-slices") in found
    assert ("layer", f"H-LRU, {setting}", "HLRU on torchlpc") in found


def test_rivals_that_are_not_installed_are_skipped(monkeypatch, capsys):
    monkeypatch.setattr(rivals, "find_spec", lambda name: None)
    assert rivals.available(("loop", "jax scan", "torchlpc")) == ["loop"]
    printed = capsys.readouterr().err
    assert "jax scan, torchlpc" in printed
    assert install_command("bench") in printed


def test_memory(tmp_path):
    out = tmp_path / "memory.jsonl"
    main(
        [
            "bench",
            "memory",
            "--batch",
            "8",
            "--length",
            "2048",
            "--width",
            "64",
            "--block-size",
            "8",
            "--out",
            str(out),
        ]
    )
    found = {row["entrant"]: row["value"] for row in lines(out)}
    assert set(found) == {
        f"{layer}, save_memory={on}" for layer in memory.LAYERS for on in (False, True)
    }
    assert found["BDLRU, save_memory=True"] < found["BDLRU, save_memory=False"] / 2


def test_error(tmp_path):
    out = tmp_path / "error.jsonl"
    sizes = [
        "--batch",
        "2",
        "--length",
        "16",
        "--blocks",
        "9",
        "--block-sizes",
        "3",
        "--permutation-length",
        "50",
    ]
    main(["bench", "error", *sizes, "--out", str(out)])
    rows = lines(out)
    assert rows[-1]["value"] == 0
    assert {row["setting"] for row in rows[:-1]} == {
        f"{name} m = 3, {y}" for name in error.SCANS for y in ("h", "dgates", "dv")
    }
    assert all(0 < row["value"] < 1e-5 for row in rows[:-1])


def test_decode(tmp_path):
    out = tmp_path / "decode.jsonl"
    sizes = ["--positions", "20", "5", "--tokens", "3", "--rounds", "2"]
    main(["bench", "decode", "--presets", "180k-bdlru-m4", *sizes, "--out", str(out)])
    rows = lines(out)
    assert [(row["unit"], row["entrant"], row["reference"]) for row in rows] == [
        (unit, entrant, "token 5") for unit in ("ms", "MiB") for entrant in ("token 5", "token 20")
    ]
    assert all(row["value"] > 0 for row in rows)


def test_saturated_permutations_are_exact():
    assert (
        error.permutation_row(error.ErrorConfig(1, 1, 1, (1,), permutation_length=8192)).value == 0
    )


def test_a_contest_reports_ratios_to_its_reference():
    rows = hold(
        Contest("x", "y", "b", {"a": lambda: sum(range(20000)), "b": lambda: sum(range(20000))}),
        rounds=3,
    )
    assert [(row.entrant, row.reference, row.rounds) for row in rows] == [
        ("a", "b", 3),
        ("b", "b", 3),
    ]
    assert rows[0].ratio == rows[0].value / rows[1].value


def test_a_failing_entrant_is_skipped(capsys):
    def fail():
        raise AssertionError("a stride\nand a page of reasons")

    rows = hold(Contest("x", "y", "b", {"a": fail, "b": lambda: sum(range(20000))}), rounds=1)
    assert [row.entrant for row in rows] == ["b"]
    assert capsys.readouterr().err == "left out, a (y): AssertionError: a stride\n"
    with pytest.raises(AssertionError, match="a stride"):
        hold(Contest("x", "y", "a", {"a": fail, "b": lambda: None}), rounds=1)


def test_measurements_before_a_failure_are_kept(monkeypatch, tmp_path):
    def results(config, part):
        yield [Row(part, "first", "a", 1, 1.0, "ms", "a", 1.0, 1)], 0
        raise RuntimeError("out of memory")

    monkeypatch.setattr(speed, "results", results)
    with pytest.raises(RuntimeError, match="out of memory"):
        main(["bench", "speed", "--parts", "scan", "--out", str(tmp_path / "x.jsonl")])
    assert json.loads((tmp_path / "x.jsonl").read_text())["setting"] == "first"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speed", "--rounds", "0"], "--rounds must be at least 1, got 0"),
        (["speed", "--batch", "-1"], "--batch must be at least 1, got -1"),
        (["speed", "--block-sizes", "2", "0"], "--block-sizes must be at least 1, got 0"),
        (["speed", "--rivals", "fla"], "--rivals must be among 'hop_scan'.* on cpu, got 'fla'"),
        (
            ["speed", "--device", "cuda", "--rivals", "mamba.py"],
            "--rivals must be among 'hop_scan'.* on cuda, got 'mamba.py'",
        ),
        (
            ["speed", "--dtype", "bfloat16"],
            "on the CPU, --dtype bfloat16 is for --parts layer lm, got kernel",
        ),
        (
            ["speed", "--out", "no/such/folder/x.jsonl"],
            "cannot write to --out no/such/folder/x.jsonl: No such file or directory",
        ),
        (["memory", "--width", "10"], "--width must be a multiple of --block-size 4, got 10"),
        (["decode", "--positions", "0"], "--positions must be at least 1, got 0"),
        (
            ["decode", "--presets", "3m-bdlru"],
            "Unknown preset '3m-bdlru'. Available: 212m-bdlru-m1",
        ),
        (["error", "--out", "no/such/folder/x.jsonl"], "cannot write to --out"),
    ],
)
def test_bench_checks_its_options_before_measuring(arguments, message):
    with pytest.raises(SystemExit, match=message):
        main(["bench", *arguments])


def test_steps_of_tasks_in_both_precisions():
    contests = list(task_step.task_contests(length=40))
    settings = [contest.setting for contest in contests]
    assert settings[1] == "copy, m = 16, 512 states, width 128, B = 128, T = 40"
    assert len(set(settings)) == 4
    losses = {name: entrant()[0] for name, entrant in contests[0].entrants.items()}
    assert losses["bf16"] == pytest.approx(losses["float32"], abs=0.01)
    assert losses["bf16"] != losses["float32"]


def test_the_hop_scan_language_model_computes_the_same_loss():
    models = ("nn.LSTM", "BD-LRU on hop_scan")
    contest = lm_step.lm_contest(batch=1, length=12, vocab=64, models=models)
    losses = {name: entrant() for name, entrant in contest.entrants.items()}
    assert losses["BD-LRU on hop_scan"] == pytest.approx(losses["BD-LRU, m = 4"], rel=1e-5)
    assert losses["nn.LSTM"] != losses["BD-LRU, m = 4"]


def test_a_step_that_takes_too_long_is_bounded(tmp_path):
    """With more than 512 tokens a first step runs in a process, which is ended after a limit."""
    pytest.importorskip("transformers", reason="this rival is a model of transformers")
    contest = lm_step.lm_contest(
        batch=1, length=600, vocab=64, models=("transformers Mamba",), limit=0.1
    )
    ours, mamba = hold(contest, rounds=1)
    assert (mamba.value, mamba.rounds) == (100.0, 0)
    assert mamba.ratio == 0.1 / (ours.value / 1e3)
    assert f"> {mamba.ratio:.2g} |" in markdown([ours, mamba])


def test_a_step_that_fails_in_its_process_is_left_out():
    with pytest.raises(RuntimeError, match="failed in its process with exit code 1"):
        lm_step._try_in_process("no such model", 1, 600, False, 60.0)


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.filterwarnings("ignore")  # of other packages
def test_models_of_other_packages_have_our_size_and_decode_what_they_compute(name):
    if name.startswith("transformers"):
        pytest.importorskip("transformers", reason="this rival is a model of transformers")
    foreign = FOREIGN[name]("2m")
    foreign.model.eval()
    ours = count_parameters(find_preset("2m-bdlru-m4"))
    parameters = foreign.model.named_parameters()
    count = sum(p.numel() for name, p in parameters if "wpe" not in name)
    assert count == pytest.approx(ours, rel=0.06)
    tokens = torch.randint(2048, (2, 6))
    with torch.inference_mode():
        expected, _ = foreign.run(tokens, False)
        state = None
        for t in range(6):
            logits, state = foreign.step(tokens[:, t], state)
            torch.testing.assert_close(logits, expected[:, t], rtol=1e-3, atol=1e-3)
    assert foreign.loss(tokens, tokens).requires_grad


def test_tables_show_the_value_of_the_reference_and_ratios(tmp_path, capsys):
    rows = [
        Row("lm", "B = 1", "ours", 1, 73.456, "ms", "ours", 1.0, 7),
        Row("lm", "B = 1", "nn.LSTM", 1, 90.0, "ms", "ours", 1.2251, 7),
        Row("lm", "B = 8", "ours", 1, 300.0, "ms", "ours", 1.0, 7),
    ]
    out = tmp_path / "lm.jsonl"
    append(rows, out)
    main(["bench", "table", str(out)])
    assert capsys.readouterr().out == (
        "| | ours | nn.LSTM |\n|---|---|---|\n| B = 1 | 73.5 ms | 1.23 |\n| B = 8 | 300 ms | – |\n"
    )
    with pytest.raises(SystemExit, match=r"no such file: .*absent\.jsonl"):
        main(["bench", "table", str(tmp_path / "absent.jsonl")])


def test_tables_in_the_docs_are_rendered_from_results():
    root = Path(__file__).parents[1]
    page = (root / "docs" / "explanation" / "products.md").read_text()
    blocks = re.findall(r"<!-- (results/bench/\S+) -->\n\n(.*?)\n\n", page, re.DOTALL)
    assert blocks
    for file, table in blocks:
        assert table == markdown(read_rows([root / file])), file


def test_the_names_of_language_models_are_those_of_the_contest():
    assert lm_step.MODELS == LM_MODELS


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_raises():
    with pytest.raises(SystemExit, match="--device cuda needs a GPU, and torch sees none"):
        main(["bench", "speed", "--device", "cuda"])


def test_rivals_on_a_gpu_depend_on_block_size():
    sizes = {m: (2, T, 8, m) for m, T in ((1, 64), (2, 64), (3, 60))}
    names = {
        m: [name for name in RIVALS["cuda"] if rivals.takes(name, size)]
        for m, size in sizes.items()
    }
    assert set(names[1]) - set(names[2]) == {"fla HGRN", "accelerated-scan"}
    assert names[2] == names[3]
    assert not rivals.takes("accelerated-scan", (2, 60, 8, 1))


def test_bandwidth_falls_back_to_the_copy():
    """If the device does not report its bandwidth, that of the copy is the reference."""
    copy = Row("kernel", "s", "copy", 1, 2.0, "ms", "copy", 1.0, 3)
    rows = gpu.bandwidth_rows(
        [copy, replace(copy, entrant="kernel", value=4.0, ratio=2.0)], 8_000_000
    )
    assert [(row.value, row.unit, row.ratio) for row in rows] == [
        (4.0, "GB/s", 1.0),
        (2.0, "GB/s", 0.5),
    ]
