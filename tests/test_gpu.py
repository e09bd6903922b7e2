"""The Triton scans without a GPU.

Two suites run in separate processes: one with Triton's interpreter, one with its compiler. This
file also tests what needs neither. `make test-gpu` runs both suites in full. On a machine with a
GPU, the comparisons also run on the GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cases import EACH_SCAN, GATED_BLOCK, GATED_COMPANION, bounds, random_mask, run
from torch._subclasses.fake_tensor import FakeTensorMode

from statemix.cli import main
from statemix.extras import install_command
from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.gpu.plan import MAX_SIZE, make_plan
from statemix.ops.dispatch import gpu, registry

TESTS = Path(__file__).parent
needs_triton = pytest.mark.skipif(
    gpu.find_spec("triton") is None, reason="Triton has no wheel for this platform"
)


def run_in_new_process(file: str, variables: dict[str, str]) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        str(TESTS / file),
    ]
    result = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
        env={**os.environ, **variables},
    )
    assert result.returncode == 0, result.stdout + result.stderr


@needs_triton
@pytest.mark.timeout(900)
def test_interpreted():
    run_in_new_process("gpu_interpreted.py", {"TRITON_INTERPRET": "1", "STATEMIX_KERNELS": "off"})


@needs_triton
@pytest.mark.timeout(900)
def test_compiled():
    run_in_new_process("gpu_compiled.py", {"TRITON_INTERPRET": "0"})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
@pytest.mark.parametrize("T", [1, 65, 1000])
@pytest.mark.parametrize("m", [1, 3, 4, 8, 16])
@pytest.mark.parametrize("case", [case for case in EACH_SCAN if case.name != "hop_scan"], ids=str)
def test_on_a_gpu(case, m, T):
    inputs = [x.float().cuda() for x in case.inputs(2, T, 9, m, seed=T)]
    plain = run(case.scan, [x.cpu() for x in inputs], {}, torch.float64)
    torch.set_default_device("cuda")
    try:
        ours = run(case.scan, inputs, {}, torch.float32)
    finally:
        torch.set_default_device("cpu")
    for y, truth in zip(ours, plain, strict=True):
        assert (y.cpu() - truth).norm() <= 5e-5 * truth.norm()


@needs_triton
def test_sizes_do_not_trigger_recompilation():
    """Triton specialises on constexprs only, not on lengths or on the alignment of tensors."""
    from statemix.kernels.gpu import sweeps

    for kernel in (sweeps.forward, sweeps.backward, sweeps.summarise, sweeps.join):
        for parameter in kernel.params:
            fixed = (
                parameter.is_constexpr
                or parameter.do_not_specialize
                or parameter.do_not_specialize_on_alignment
            )
            assert fixed, f"{parameter.name} of {kernel.__name__}"


def plan(S, T, n, m, block=True):
    recurrence = Recurrence.BLOCK if block else Recurrence.COMPANION
    return make_plan(S, T, n, m, recurrence=recurrence, processors=132, warp=32)


def test_long_sequences_are_cut_if_processors_would_idle():
    assert plan(1, 65536, 128, 4).chunk == 256
    assert plan(1, 10**6, 128, 4).chunk == 1024
    assert plan(1, 128, 128, 4).chunk == 0, "too short to be cut"
    assert plan(256, 4096, 128, 4).chunk == 0, "enough sequences for all processors"
    assert plan(16, 4096, 64, 16).chunk == 0, "larger blocks are cut later: their chunks cost more"
    assert plan(16, 4096, 1024, 1).chunk == 64


def test_plans_fill_a_warp_and_never_more_than_a_row():
    for block in (True, False):
        largest = MAX_SIZE[Recurrence.BLOCK if block else Recurrence.COMPANION]
        for m in range(1, largest + 1):
            chosen = plan(8, 2048, 32, m, block)
            assert chosen.lanes >= 32
            assert chosen.lanes % 32 == 0
            assert chosen.lanes >= (m if block else 1)
            assert 1 <= chosen.steps <= 4
            assert 1 <= chosen.together <= m + 1


@pytest.mark.parametrize("case", [GATED_BLOCK[0], GATED_COMPANION[0]], ids=str)
def test_fake_tensors_on_a_gpu(case):
    """Tracing for a GPU does not need one; shapes, dtypes and device follow from the inputs."""
    name, m = case.name.split("[")[0], 3
    with FakeTensorMode():
        X, x, h0 = (
            torch.empty(y.shape, dtype=torch.bfloat16, device="cuda")
            for y in case.inputs(1, 7, 2, m, S=3)
        )
        cu_seqlens, mask = (
            torch.empty(4, dtype=torch.int32, device="cuda"),
            torch.empty(1, 7, dtype=torch.bool, device="cuda"),
        )
        h, final = getattr(torch.ops.statemix, name)(X, x, h0, cu_seqlens, mask, False, "softmax")
        assert (h.shape, h.dtype, h.device.type) == (x.shape, torch.bfloat16, "cuda")
        assert (final.shape, final.dtype, final.device.type) == ((3, 2, m), torch.float32, "cuda")
        backward = getattr(torch.ops.statemix, f"{name}_backward")
        gradients = backward(h, final, X, x, h, h0, cu_seqlens, mask, False, "softmax")
        assert [(g.shape, g.dtype) for g in gradients] == [
            (X.shape, torch.bfloat16),
            (x.shape, torch.bfloat16),
            ((3, 2, m), torch.float32),
        ]


@pytest.fixture
def fresh_verdicts(monkeypatch):
    """Clear all warnings and verdicts, and restore the tables of kernels after the test."""
    real = gpu.unavailable
    real.cache_clear()
    monkeypatch.setattr(gpu, "WARNED", set())
    monkeypatch.setattr(gpu, "VERDICTS", {})
    monkeypatch.setattr(registry, "KERNELS", dict(registry.KERNELS))
    monkeypatch.setattr(registry, "REASONS", dict(registry.REASONS))
    yield
    real.cache_clear()


@pytest.mark.usefixtures("fresh_verdicts")
def test_a_missing_triton_warns_once(monkeypatch):
    monkeypatch.setattr(gpu, "find_spec", lambda name: None)
    X, x, h0 = (y.float() for y in GATED_BLOCK[0].inputs(1, 3, 2, 2))
    call = ScanCall(Recurrence.BLOCK, "softmax", X, x, h0)
    with pytest.warns(
        UserWarning,
        match=r"Triton is not installed; pip install .*'.*\[gpu\]'. Plain torch "
        r"computes this scan instead",
    ):
        assert not gpu.supports(call, "forward")
    assert not gpu.supports(call, "forward")
    assert gpu.describe() == f"Triton is not installed; {install_command('gpu')}"


@pytest.mark.usefixtures("fresh_verdicts")
def test_disabled_kernels_do_not_warn(monkeypatch):
    monkeypatch.setenv("STATEMIX_KERNELS", "off")
    X, x, h0 = (y.float() for y in GATED_BLOCK[0].inputs(1, 3, 2, 2))
    assert not gpu.supports(ScanCall(Recurrence.BLOCK, "softmax", X, x, h0), "forward")
    assert gpu.describe() == "switched off by STATEMIX_KERNELS=off"


@pytest.mark.usefixtures("fresh_verdicts")
def test_info_lists_failed_kernels(monkeypatch, capsys):
    """With a broken compiler, every kernel is checked, and scans that fail use plain torch."""
    monkeypatch.setattr(gpu, "unavailable", lambda: "")
    monkeypatch.setattr(gpu, "verdict", lambda kind: "no ptxas" if kind.recurrence.is_block else "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i=0: "a GPU")
    for name in gpu.ops_of_scans():
        registry.KERNELS[name, "cuda"] = "Triton"
    main(["info", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert "8 kernels checked, 4 failed: forward of block_scan" in report["gpu_kernels"]
    choices = {choice["op"]: choice for choice in report["kernels"] if choice["device"] == "cuda"}
    assert choices["gated_block_scan"]["kernel"] == "plain torch"
    assert choices["gated_block_scan"]["why"] == "failed its self-check: no ptxas"
    assert choices["gated_companion_scan"]["kernel"] == "Triton"


def test_longest_sequence_is_read_once(monkeypatch):
    reads = []
    real = gpu.checked_bounds
    monkeypatch.setattr(gpu, "checked_bounds", lambda cu, T: reads.append(T) or real(cu, T))
    cu_seqlens = bounds([3, 0, 5])
    assert [gpu.longest_of(cu_seqlens, 8) for _ in range(3)] == [5, 5, 5]
    assert len(reads) == 1
    cu_seqlens[1:3] = 2
    assert gpu.longest_of(cu_seqlens, 8) == 6
    with torch.inference_mode():
        assert gpu.longest_of(bounds([4, 4]), 8) == 4


def test_lags_of_a_masked_companion_scan_are_its_entering_states():
    case = GATED_COMPANION[0]
    X, x, h0 = (y.float() for y in case.inputs(1, 6, 2, 3))
    mask = random_mask(1, 6, 1)
    h, _ = case.scan(X, x, h0, mask=mask)
    call = ScanCall(Recurrence.COMPANION, "softmax", X, x, h0, mask=mask)
    lags = gpu.masked_lags(call, h)
    for t in range(6):
        _, entering = case.scan(X[:, :t], x[:, :t], h0, mask=mask[:, :t])
        torch.testing.assert_close(lags[:, t], entering)
