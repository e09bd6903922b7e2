"""The compiled library: its threads, its self-check, and what happens without it."""

import ctypes
import os
import subprocess
import sys
import threading
import warnings

import pytest
import torch

from statemix import gated_block_scan
from statemix.kernels.cpu import scans
from statemix.kernels.cpu.library import Library, Missing
from statemix.ops.dispatch import cpu, registry
from statemix.ops.dispatch.cpu_check import disagreement

LIBRARY = cpu.find_library()
needs_library = pytest.mark.skipif(isinstance(LIBRARY, Missing), reason="no compiled CPU library")


def python(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    ).stdout


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def own_threads(two_threads):
    """The library's own threads instead of those of torch's OpenMP runtime."""
    runtime = getattr(ctypes.CDLL(None), "GOMP_parallel", None)
    LIBRARY.handle.statemix_use_openmp(None)
    yield
    LIBRARY.handle.statemix_use_openmp(ctypes.cast(runtime, ctypes.c_void_p))


def large_scan() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    gates = torch.randn(3, 64, 64, 4, 5, generator=generator)
    v = torch.randn(3, 64, 64, 4, generator=generator)
    return gated_block_scan(gates, v)[0]


@needs_library
def test_threads_change_no_bit(two_threads):
    shared = large_scan()
    torch.set_num_threads(1)
    assert torch.equal(shared, large_scan())


@needs_library
def test_own_threads_change_no_bit(own_threads):
    own = large_scan()
    torch.set_num_threads(1)
    assert torch.equal(own, large_scan())


@needs_library
def test_concurrent_callers_share_the_own_threads(own_threads):
    expected = large_scan()
    wrong: list[int] = []

    def work(number: int) -> None:
        if any(not torch.equal(large_scan(), expected) for _ in range(20)):
            wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@needs_library
def test_a_forked_child_starts_its_own_threads():
    code = """
import os, torch
from statemix import gated_block_scan
from statemix.ops.dispatch import cpu
cpu.find_library().handle.statemix_use_openmp(None)
torch.set_num_threads(1)
gates, v = torch.randn(2, 64, 64, 4, 5), torch.randn(2, 64, 64, 4)
torch.set_num_threads(2)
expected = gated_block_scan(gates, v)[0].numpy().copy()
child = os.fork()
if child == 0:
    same = (gated_block_scan(gates, v)[0].numpy() == expected).all()
    threads = len(os.listdir("/proc/self/task"))
    os._exit(0 if same and threads == 2 else 1)
print(os.waitpid(child, 0)[1])
"""
    assert python(code) == "0\n"


@needs_library
def test_the_library_passes_its_check():
    assert disagreement(LIBRARY) == ""


@needs_library
@pytest.mark.parametrize("way", ["forward", "backward"])
def test_a_wrong_library_steps_aside(monkeypatch, way):
    right = getattr(scans, way)

    def wrong(library: Library, call, *rest):
        first, *others = right(library, call, *rest)
        return first * (1 + 1e-3 * (call.m == 5)), *others

    monkeypatch.setattr(scans, way, wrong)
    cpu.find_library.cache_clear()
    try:
        library = cpu.find_library()
    finally:
        cpu.find_library.cache_clear()
    assert isinstance(library, Missing)
    assert "failed its self-check: gated_block_scan" in library.reason
    assert "m = 5, gate softmax differs from plain torch by" in library.reason


def test_a_missing_library_warns_once_with_the_reason(monkeypatch):
    monkeypatch.setattr(registry, "KERNELS", dict(registry.KERNELS))
    monkeypatch.setattr(registry, "REASONS", dict(registry.REASONS))
    monkeypatch.setattr(cpu, "find_library", lambda: Missing("there is no compiler"))
    with pytest.warns(UserWarning, match="no compiled CPU kernels.*there is no compiler") as seen:
        cpu.install()
    assert len(seen) == 1
    assert cpu.describe() == "there is no compiler"
    choices = [choice for choice in registry.kernel_choices() if choice.device == "cpu"]
    assert {(choice.kernel, choice.why) for choice in choices} == {
        ("plain torch", "there is no compiler")
    }


def test_a_library_that_is_switched_off_does_not_warn(monkeypatch):
    monkeypatch.setattr(registry, "KERNELS", dict(registry.KERNELS))
    monkeypatch.setattr(registry, "REASONS", dict(registry.REASONS))
    monkeypatch.setattr(cpu, "find_library", lambda: Missing("off", switched_off=True))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpu.install()
