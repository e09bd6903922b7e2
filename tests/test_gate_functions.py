"""A gate function without kernels runs in plain torch, on all devices and in all layers."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from statemix import BDLRU, HLRU
from statemix.kernels.calls import Recurrence, ScanCall
from statemix.ops import (
    NORMALISERS,
    block_scan,
    gated_block_scan,
    gated_companion_scan,
    normalise,
    register_normaliser,
)
from statemix.ops.dispatch import gpu
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch.scans import Scans, run_backward, run_forward
from statemix.ops.normalise import find_normaliser

LAYERS = pytest.mark.parametrize("cls", [BDLRU, HLRU])


def squares(g):
    return g**2 / (1 + (g**2).sum(-1, keepdim=True))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)
    register_normaliser("squares", squares)
    yield
    del NORMALISERS["squares"]


def test_a_name_cannot_be_registered_twice():
    with pytest.raises(ValueError, match="The gate function 'squares' already exists"):
        register_normaliser("squares", squares)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_gated_scan_equals_normalise_then_scan(dtype):
    gates, v = torch.randn(2, 9, 3, 2, 3).to(dtype), torch.randn(2, 9, 3, 2).to(dtype)
    h, _ = gated_block_scan(gates, v, gate="squares")
    w = normalise(gates.double(), "squares")
    expected, _ = block_scan(w[..., :-1], w[..., -1] * v.double())
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(h.double(), expected, rtol=tolerance, atol=tolerance)
    assert h.dtype == dtype


def test_derived_gradients():
    gates = torch.randn(1, 4, 2, 3, dtype=torch.float64, requires_grad=True)
    v = torch.randn(1, 4, 2, dtype=torch.float64, requires_grad=True)

    def scan(gates, v):
        return gated_companion_scan(gates, v, gate="squares")

    assert gradcheck(scan, (gates, v))
    assert gradgradcheck(scan, (gates, v))


@pytest.mark.parametrize("save_memory", [False, True])
@LAYERS
def test_layers_run_it_without_kernels(cls, save_memory):
    """Kernels exist for float32 only, so gradients in float32 must match those in float64."""
    layer = cls(6, 3, 2, gate="squares", save_memory=save_memory)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x, found = torch.randn(2, 40, 6), []
    for dtype in (torch.float32, torch.float64):
        own, inputs = layer.to(dtype), x.to(dtype).requires_grad_()
        y, state = own(inputs)
        gradients = torch.autograd.grad(y.square().sum() + state.sum(), [inputs, *own.parameters()])
        found.append([z.detach().double() for z in (y, state, *gradients)])
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)


@LAYERS
def test_a_step_is_a_layer_of_one_step(cls):
    layer, x = cls(6, 3, 2, gate="squares"), torch.randn(2, 1, 6)
    y, state = layer(x)
    y_t, state_t = layer.step(x[:, 0])
    torch.testing.assert_close((y_t, state_t), (y[:, 0], state))


def test_it_can_be_sharpened_if_it_saturates():
    layer = BDLRU(6, 3, 2, gate="squares")
    with pytest.raises(ValueError, match="Only gates that saturate can be sharpened"):
        layer.sharpen(2.0)
    del NORMALISERS["squares"]
    register_normaliser("squares", squares, saturates=True)
    layer.sharpen(2.0)


def test_a_custom_vjp_is_used():
    del NORMALISERS["squares"]
    register_normaliser("squares", squares, lambda g, dw: torch.zeros_like(dw))
    gates = torch.randn(1, 3, 1, 1, 2, requires_grad=True)
    gated_block_scan(gates, torch.randn(1, 3, 1, 1), gate="squares")[0].sum().backward()
    assert not gates.grad.any()
    assert find_normaliser("squares").vjp(gates, gates).abs().sum() == 0


@pytest.mark.parametrize("recurrence", Recurrence)
def test_a_gpu_falls_back_to_plain_torch_and_warns_once(recurrence, monkeypatch):
    """Call what the dispatcher calls on a GPU, with CPU tensors and kernels that fail the test."""

    def fail(*_):
        raise AssertionError("a kernel ran")

    monkeypatch.setattr(gpu, "unavailable", lambda: "")
    monkeypatch.setattr(gpu, "WARNED", set())
    on_gpu = Scans(gpu.supports, fail, fail)
    driver = (2, 5, 3, 2) if recurrence.is_block else (2, 5, 3)
    gates, v, dh = torch.randn(*driver, 3), torch.randn(driver), torch.randn(driver)
    call = ScanCall(recurrence, "squares", gates, v)
    with pytest.warns(
        UserWarning, match="GPU kernels do not have the gate function 'squares'. Plain torch"
    ):
        h, final = run_forward(on_gpu, call)
    dgates, dv, _ = run_backward(on_gpu, call, h, dh, torch.zeros_like(final))
    scan = gated_block_scan if recurrence.is_block else gated_companion_scan
    leaves = [y.double().requires_grad_() for y in (gates, v)]
    exact, _ = scan(*leaves, gate="squares")
    expected = torch.autograd.grad(exact, leaves, dh.double())
    for ours, truth in zip((h, dgates, dv), (exact, *expected), strict=True):
        torch.testing.assert_close(ours.double(), truth.detach(), rtol=1e-4, atol=1e-5)


def test_gpu_kernels_do_not_support_it(monkeypatch):
    monkeypatch.setattr(gpu, "WARNED", set())
    call = ScanCall(
        Recurrence.BLOCK, "squares", torch.randn(1, 3, 1, 2, 3), torch.randn(1, 3, 1, 2)
    )
    with pytest.warns(UserWarning, match="do not have the gate function 'squares'"):
        assert not gpu.supports(call, "forward")
    assert not gpu.supports(call, "backward")
