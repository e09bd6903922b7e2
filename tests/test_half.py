"""bfloat16 on the CPU: kernels that read and write it, and fused layers that compute in it."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from cases import bounds, random_mask
from torch import nn

from statemix import BDLRU, HLRU
from statemix.config.task import RunConfig, config_from_dict
from statemix.kernels.cpu import layer as cpu_layer
from statemix.kernels.cpu.library import Missing, load
from statemix.ops import Lookup
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch import layer_op
from statemix.train.loop import train

T = 45
SIZES = [(1, 9), (2, 3), (3, 8), (4, 17), (5, 1), (8, 9), (11, 5), (16, 8)]
SETTINGS = {
    "batch": (3, {}),
    "reverse": (2, {"reverse": True}),
    "masked": (2, {"mask": random_mask(2, T, 4)}),
    "packed": (1, {"cu_seqlens": bounds([3, 0, 20, 1, 21, 0])}),
}
LAYERS = pytest.mark.parametrize("cls", [BDLRU, HLRU])
pytestmark = pytest.mark.skipif(isinstance(load(), Missing), reason="no compiled CPU library")


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    monkeypatch.setattr(cpu_layer, "STEPS", 16)
    monkeypatch.setattr(layer_op, "STEPS", 16)
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("m", "n"), SIZES)
@pytest.mark.parametrize("block", [True, False], ids=["block", "companion"])
@pytest.mark.parametrize("gate", [None, "softmax", "hardmax", "relu"])
def test_kernels_round_float32_once(block, m, n, setting, gate):
    """Every tensor may be bfloat16; the results are those of float32, rounded at the end."""
    B, options = SETTINGS[setting]
    S = len(options["cu_seqlens"]) - 1 if "cu_seqlens" in options else B
    name = f"{'' if gate is None else 'gated_'}{'block' if block else 'companion'}_scan"
    driver = (B, T, n, m) if block else (B, T, n)
    X, x, dh = (
        torch.randn(shape).bfloat16()
        for shape in ((*driver, m + (gate is not None)), driver, driver)
    )
    X = X if gate else X / m
    h0, dfinal = torch.randn(S, n, m), torch.randn(S, n, m)
    time = (options.get("cu_seqlens"), options.get("mask"), options.get("reverse", False))
    time = (*time, gate) if gate else time
    forward = getattr(torch.ops.statemix, name)
    backward = getattr(torch.ops.statemix, f"{name}_backward")
    h, final = forward(X, x, h0, *time)
    exact_h, exact_final = forward(X.float(), x.float(), h0, *time)
    assert h.dtype == torch.bfloat16
    assert torch.equal(h, exact_h.bfloat16())
    assert torch.equal(final, exact_final)
    driver_of = (x,) if gate else ()
    ours = backward(dh, dfinal, X, *driver_of, h, h0, *time)
    wide = (y.float() for y in (*driver_of, h))
    exact = backward(dh.float(), dfinal, X.float(), *wide, h0, *time)
    for one, truth in zip(ours, exact, strict=True):
        assert torch.equal(one, truth.to(one.dtype))


def make(cls, n, m, **options):
    layer = cls(6, n, m, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.7)
    return layer


def everything(call, layer, x):
    """Outputs and all gradients of `call`, in float64."""
    x = x.clone().requires_grad_()
    y, final = call(x)
    weights = [torch.linspace(-1, 1, z.numel()).view(z.shape).to(z) for z in (y, final)]
    loss = (y * weights[0]).sum() + (final * weights[1]).sum()
    gradients = torch.autograd.grad(loss, [x, *layer.parameters()])
    return [z.detach().double() for z in (y, final, *gradients)]


def in_bf16(call, *arguments, **options):
    with torch.autocast("cpu", torch.bfloat16):
        return call(*arguments, **options)


@pytest.mark.parametrize("way", ["autocast", "weights"])
@pytest.mark.parametrize("tokens", [False, True], ids=["steps", "table"])
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@LAYERS
def test_errors_are_at_most_twice_those_of_plain_torch(cls, save_memory, tokens, way):
    """Total errors over several sizes; single ones are dominated by the few roundings of inputs."""
    ours, theirs = [0.0] * 8, [0.0] * 8
    for m, n in SIZES:
        layer = make(cls, n, m, save_memory=save_memory, learn_initial_state=True)
        x = torch.randn((9, 6) if tokens else (2, T, 6))
        if way == "weights":
            layer = layer.bfloat16()
            x = x.bfloat16()
        named = torch.randint(0, 9, (3, T))
        plain = copy.deepcopy(layer)
        plain._weights = lambda: None
        exact = copy.deepcopy(plain).double()
        low = in_bf16 if way == "autocast" else lambda call, x: call(x)

        def fused(x, layer=layer, low=low, named=named):
            return low(layer, Lookup(x, named) if tokens else x)

        def lines(x, plain=plain, low=low, named=named):
            return low(plain, x[named] if tokens else x)

        def truth(x, exact=exact, named=named):
            return exact(x[named] if tokens else x)

        results = (
            everything(fused, layer, x),
            everything(lines, plain, x),
            everything(truth, exact, x.double()),
        )
        for i, (one, other, right) in enumerate(zip(*results, strict=True)):
            ours[i] += float((one - right).norm() / right.norm())
            theirs[i] += float((other - right).norm() / right.norm())
    assert all(one <= 2 * other for one, other in zip(ours, theirs, strict=True)), (ours, theirs)


@LAYERS
def test_dtypes_of_outputs_and_gradients(cls):
    layer = make(cls, 5, 3)
    x = torch.randn(2, T, 6, requires_grad=True)
    y, final = in_bf16(layer, x)
    assert "RecurrentLayer" in type(y.grad_fn).__name__ or "recurrent_layer" in y.grad_fn.name()
    assert (y.dtype, final.dtype) == (torch.bfloat16, torch.float32)
    for gradient in torch.autograd.grad(y.float().sum(), [x, *layer.parameters()]):
        assert gradient.dtype == torch.float32


@LAYERS
def test_gradients_of_weights_are_summed_in_float32(cls, monkeypatch):
    """The sum over 256 chunks; in bfloat16, it would stop growing on the way."""
    layer = make(cls, 5, 3, save_memory=True)
    x = torch.randn(1, 1, 6).expand(1, 4096, 6)

    def gradients(steps):
        monkeypatch.setattr(cpu_layer, "STEPS", steps)
        y, _ = in_bf16(layer, x)
        return torch.autograd.grad(y.float().sum(), [layer.W_o.weight, layer.W_v.weight])

    for chunks, once in zip(gradients(16), gradients(4096), strict=True):
        assert (chunks - once).norm() < 1e-2 * once.norm()


def test_saturated_permutations_are_exact():
    """With weights in bfloat16, states stay float32: 8,192 permutations move them bit for bit."""
    m, letters, steps = 5, 7, 8192
    layer = BDLRU(letters, 1, m).bfloat16()
    orders = torch.stack([torch.randperm(m) for _ in range(letters)])
    gates = torch.full((m, m + 1, letters), -200.0)
    for letter, order in enumerate(orders):
        gates[torch.arange(m), order, letter] = 200.0
    with torch.no_grad():
        layer.W_g.weight.copy_(gates.flatten(0, 1))
        layer.W_g.bias.zero_()
    word = torch.randint(letters, (1, steps))
    state = torch.randn(1, 1, m)
    _, final = layer(nn.functional.one_hot(word, letters).bfloat16(), state)
    expected = state[0, 0]
    for letter in word[0]:
        expected = expected[orders[letter]]
    assert torch.equal(final[0, 0], expected)


@pytest.mark.usefixtures("unchecked")
@LAYERS
def test_compiled_under_autocast(cls):
    layer = make(cls, 9, 3)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    x = torch.randn(2, 40, 6)
    ours = everything(partial(in_bf16, compiled), layer, x)
    truth = everything(partial(in_bf16, layer), layer, x)
    torch.testing.assert_close(ours, truth, rtol=2e-2, atol=2e-2)


def test_a_training_run_in_bf16(tmp_path):
    config = RunConfig("parity", length=8, train_examples=256, test_examples=64, epochs=2)
    low = replace(config, bf16=True)
    assert low.id != config.id
    assert config_from_dict({"task": "parity"}).bf16 is False
    first = train(low, tmp_path / "first")
    again = train(low, tmp_path / "again")
    other = train(config, tmp_path / "other")
    assert (first.train, first.curve) == (again.train, again.curve)
    assert first.id != other.id
