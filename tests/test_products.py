"""Matrix products by the faster library: the choice, and the same results from both."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from statemix.kernels.cpu import products
from statemix.layers.mlp import SwiGLU
from statemix.layers.weights import project
from statemix.models.loss import next_token_loss
from statemix.ops.dispatch.linear import linear

LIBRARIES = ["oneDNN", "torch.mm"]
SIZES = [(3, 5, 7), (257, 129, 65), (1030, 40, 96)]
no_onednn = products.unavailable()


@pytest.fixture(params=LIBRARIES)
def library(request, monkeypatch):
    """Compute all products, however small, by one library."""
    if request.param == "oneDNN" and no_onednn:
        pytest.skip(f"oneDNN is not available: {no_onednn}")
    choices = {kind: products.Choice(kind, request.param, "") for kind in products.KINDS.values()}
    monkeypatch.setattr(products, "CHOICES", choices)
    monkeypatch.setattr(products, "LARGE", 0)
    return request.param


def layouts(x):
    """The same matrix in every memory layout that a layer passes."""
    wide = torch.cat([x, x], 1)
    return [x, x.t().contiguous().t(), wide[:, : x.shape[1]], x[:, :1].expand_as(x)]


@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_every_layout(library, sizes):
    rows, inner, columns = sizes
    for a in layouts(torch.randn(rows, inner)):
        for b in layouts(torch.randn(inner, columns)):
            bias = torch.randn(columns)
            exact = a.double() @ b.double()
            total = torch.ones(rows, columns)
            products.add_product(total, a, b)
            out = torch.empty(rows, columns)
            products.into(out, a, b, bias)
            scale = exact.norm()
            assert (products.product(a, b) - exact).norm() < 1e-6 * scale
            assert (products.product(a, b, bias) - exact - bias).norm() < 1e-6 * scale
            assert (out - exact - bias).norm() < 1e-6 * scale
            assert (total - exact - 1).norm() < 1e-6 * scale


def test_large_outputs_come_from_the_pool(library, monkeypatch):
    monkeypatch.setattr(products, "LARGEST_OUTPUT", 0)
    a = torch.randn(2100, 30)
    b = torch.randn(30, 200)
    torch.testing.assert_close(products.product(a, b), a @ b, rtol=1e-4, atol=1e-5)


def test_results_do_not_depend_on_threads(library):
    a = torch.randn(1030, 200)
    b = torch.randn(300, 200).t()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        results.append((products.product(a, b), products.product(a.t(), a)))
    torch.set_num_threads(1)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(("wish", "library"), [("blas", "torch.mm"), ("onednn", "oneDNN")])
def test_the_environment_chooses(monkeypatch, wish, library):
    if library == "oneDNN" and no_onednn:
        pytest.skip(f"oneDNN is not available: {no_onednn}")
    monkeypatch.setattr(products, "CHOICES", {})
    monkeypatch.setattr(products, "_wish", lambda: wish)
    assert {choice.library for choice in products.choices()} == {library}
    assert all(wish in choice.why for choice in products.choices())


def test_a_misspelt_wish_is_an_error(monkeypatch):
    monkeypatch.setenv(products.SWITCH, "mkl")
    with pytest.raises(ValueError, match=r"must be 'auto', 'onednn' or 'blas', got 'mkl'"):
        products._wish.__wrapped__()


@pytest.mark.parametrize(("onednn", "library"), [(0.9, "torch.mm"), (0.5, "oneDNN")])
def test_onednn_must_be_clearly_faster(monkeypatch, onednn, library):
    monkeypatch.setattr(products, "CHOICES", {})
    monkeypatch.setattr(products, "_wish", lambda: "auto")
    monkeypatch.setattr(products, "unavailable", lambda: "")
    monkeypatch.setattr(products, "_measure", lambda *_: (1e-3, 1e-3 * onednn))
    assert {choice.library for choice in products.choices()} == {library}


def test_the_choice_does_not_draw_random_numbers(monkeypatch):
    monkeypatch.setattr(products, "CHOICES", {})
    before = torch.get_rng_state()
    products.choices()
    assert torch.equal(torch.get_rng_state(), before)


def test_another_schema_falls_back_to_torch(monkeypatch):
    monkeypatch.setattr(products, "CHOICES", {})
    monkeypatch.setattr(products, "SCHEMA", "another")
    monkeypatch.setattr(products, "unavailable", products.unavailable.__wrapped__)
    monkeypatch.setattr(products, "_wish", lambda: "onednn")
    first, *_ = products.choices()
    assert first.library == "torch.mm"
    assert torch.__version__ in first.why


@pytest.mark.skipif(bool(no_onednn), reason="oneDNN is not available")
def test_wrong_results_fail_the_self_check(monkeypatch):
    right = products._onednn
    monkeypatch.setattr(products, "_onednn", lambda a, b, bias: right(a, b, bias) * 1.001)
    assert "self-check" in products.unavailable.__wrapped__()


def test_flops_are_counted(library):
    x = torch.randn(200, 30)
    W = torch.randn(40, 30)
    with FlopCounterMode(display=False) as counter:
        linear(x, W)
    assert counter.get_total_flops() == 2 * 200 * 30 * 40


def gradients(f, x, module):
    y = f(x)
    weight = torch.linspace(-1, 1, y.numel()).view(y.shape)
    return y, *torch.autograd.grad((y * weight).sum(), (x, *module.parameters()))


def test_swiglu_and_its_gradients(library):
    mlp = SwiGLU(12, 24)
    for p in mlp.parameters():
        nn.init.normal_(p)
    x = torch.randn(3, 17, 12, requires_grad=True)
    exact = copy.deepcopy(mlp).double()
    expected = gradients(exact, x.detach().double().requires_grad_(), exact)
    for ours, truth in zip(gradients(mlp, x, mlp), expected, strict=True):
        assert (ours - truth).norm() < 2e-6 * truth.norm()


def test_second_derivatives_of_a_linear_map(library):
    x, W = torch.randn(5, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    (dx,) = torch.autograd.grad(linear(x, W).pow(3).sum(), x, create_graph=True)
    ours = torch.autograd.grad(dx.pow(2).sum(), (x, W))
    (dx,) = torch.autograd.grad((x @ W.t()).pow(3).sum(), x, create_graph=True)
    theirs = torch.autograd.grad(dx.pow(2).sum(), (x, W))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_autocast_and_transforms_run_plain_torch(library):
    x, W = torch.randn(5, 3), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, W).dtype == torch.bfloat16
    jacobian = torch.func.jacrev(lambda x: linear(x, W))(x[0])
    torch.testing.assert_close(jacobian, W)


def test_hooks_of_a_projection_run():
    W = nn.Linear(3, 4, bias=False)
    calls = []
    W.register_forward_hook(lambda *_: calls.append(1))
    project(W, torch.randn(5, 3))
    assert calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_under_autocast(library, dtype):
    x, W = torch.randn(50, 8, requires_grad=True), torch.randn(30, 8, requires_grad=True)
    targets = torch.randint(30, (50,))
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        loss = next_token_loss(x, W, targets, chunk=16)
    gradients = torch.autograd.grad(loss, (x, W))
    exact = nn.functional.cross_entropy(x.double() @ W.double().t(), targets)
    expected = torch.autograd.grad(exact, (x, W))
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    for ours, truth in zip((loss, *gradients), (exact, *expected), strict=True):
        assert ours.dtype == torch.float32
        assert (ours - truth).norm() < tolerance * truth.norm()


@pytest.mark.parametrize("transposed", [False, True])
def test_onednn_never_sees_a_second_factor_with_gaps(monkeypatch, transposed):
    """It would compute the product in a reference implementation."""
    seen = []
    original = torch.ops.mkldnn._linear_pointwise.default

    def spy(x, weight, *others):
        seen.append(weight.is_contiguous() or weight.t().is_contiguous())
        return original(x, weight, *others)

    monkeypatch.setattr(torch.ops.mkldnn._linear_pointwise, "default", spy)
    a, b = torch.randn(20, 30), torch.randn(40, 60)[:30, :40]
    if transposed:
        b = torch.randn(60, 40)[:40, :30].t()
    torch.testing.assert_close(products._onednn(a, b, None), a @ b)
    assert seen == [True]
