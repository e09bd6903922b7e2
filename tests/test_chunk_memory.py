"""The memory of a layer that recomputes its gates by chunk, as a GPU runs it: without kernels for
the full layer. The op's plain body projects and scans one chunk after the other on every device."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from statemix import BDLRU
from statemix.ops.dispatch import layer_call, layer_op

D, N, M, CHUNK = 16, 32, 4, 64
FLOAT = 4  # bytes


@pytest.fixture(autouse=True)
def without_layer_kernels(monkeypatch):
    monkeypatch.setattr(layer_call, "LAYER_KERNELS", {})
    monkeypatch.setattr(layer_op, "STEPS", CHUNK)


def peak(run) -> int:
    """The largest number of bytes that torch's allocator held during a call."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        run()
    held = largest = 0
    changes = (e for e in found.profiler.kineto_results.events() if e.name() == "[memory]")
    for event in sorted(changes, key=lambda e: e.start_ns()):
        held += event.nbytes()
        largest = max(largest, held)
    return largest


def peak_of_a_step(steps: int, *, save_memory: bool) -> int:
    """The peak of a forward and a backward pass over one sequence."""
    torch.manual_seed(0)
    layer = BDLRU(D, N, M, save_memory=save_memory)
    x = torch.randn(1, steps, D, requires_grad=True)

    def run() -> None:
        y, _ = layer(x)
        y.sum().backward()

    run()
    layer.zero_grad(set_to_none=True)
    x.grad = None
    return peak(run)


PER_STEP = 2 * D + N * M / CHUNK  # numbers: y and dx, and one state in CHUNK steps


def test_peak_memory_grows_with_inputs_and_outputs_alone():
    """Its gates would add n m (m + 1) numbers a step."""
    short, long = (peak_of_a_step(steps, save_memory=True) for steps in (512, 2048))
    assert (long - short) / (2048 - 512) / FLOAT <= PER_STEP + 1


def test_the_rest_is_one_chunk_and_the_weights():
    """A chunk has gates, values and states, and torch holds them and their gradients at once."""
    weights = sum(p.nbytes for p in BDLRU(D, N, M).parameters())
    chunk = CHUNK * N * M * ((M + 1) + 2) * FLOAT
    rest = peak_of_a_step(1024, save_memory=True) - 1024 * PER_STEP * FLOAT
    assert rest <= 2 * chunk + 3 * weights


def test_the_default_stores_gates():
    """The measurement sees gates when they are stored."""
    short, long = (peak_of_a_step(steps, save_memory=False) for steps in (512, 2048))
    assert (long - short) / (2048 - 512) / FLOAT > N * M * (M + 1)
