"""Corner cases of a layer as one op.

Inputs that depend on each other, invalid tokens, autocast, very different gates, strides, and NaN.
"""

import copy
import math

import pytest
import torch
from test_layer_op import LAYERS, make, needs_kernel, without_fused_op
from torch.nn import functional as F

from statemix import (
    BDLRU,
    LanguageModel,
    LMConfig,
    block_scan,
    companion_scan,
    gated_block_scan,
    gated_companion_scan,
    hop_scan,
)
from statemix.layers import build_mixer
from statemix.models import next_token_loss
from statemix.ops import Lookup
from statemix.ops.block import block_step
from statemix.ops.companion import companion_step
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.expanded import expanded_companion_scan

HALVES = [(torch.float32, True), (torch.bfloat16, False), (torch.bfloat16, True)]


@pytest.fixture(autouse=True)
def always_one_op(monkeypatch):
    monkeypatch.setattr(layer_dispatch, "WORTHWHILE", 0)


def relative(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


def apply_three_times(layer, x):
    """Apply the layer three times, so that weights and a state are used repeatedly."""
    y, state = layer(x)
    y, state = layer(y, state)
    return layer(x + y, state)[0]


@pytest.mark.parametrize(
    "kernel", [pytest.param(True, marks=needs_kernel), False], ids=["kernel", "plain body"]
)
@LAYERS
def test_gradients_with_a_graph_where_inputs_depend_on_each_other(cls, kernel):
    layer = make(cls, 3, 2, save_memory=not kernel)
    x = torch.randn(2, 7, 6)
    layer, x = (layer, x) if kernel else (layer.double(), x.double())
    plain, found = without_fused_op(layer), []
    for module, own in ((layer, x), (plain, x.double())):
        leaves = [own.requires_grad_(), *module.parameters()]
        first = torch.autograd.grad(
            apply_three_times(module, own).square().sum(), leaves, create_graph=True
        )
        second = torch.autograd.grad(sum(d.square().sum() for d in first), leaves)
        found.append((*first, *second))
    assert all(
        relative(ours, truth) < (1e-4 if kernel else 1e-10)
        for ours, truth in zip(*found, strict=True)
    )


def test_gradients_with_a_graph_of_a_tied_head():
    torch.manual_seed(0)
    E, targets, found = (
        torch.randn(5, 4, dtype=torch.float64, requires_grad=True),
        torch.tensor([1, 4, -100, 0]),
        [],
    )
    x = E[torch.tensor([0, 2, 2, 3])].tanh()
    for loss in (next_token_loss(x, E, targets, chunk=3), F.cross_entropy(x @ E.T, targets)):
        (first,) = torch.autograd.grad(loss, E, create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), E, retain_graph=True)))
    torch.testing.assert_close(*found)


@needs_kernel
@pytest.mark.parametrize("wrong", [-1, -100, 7])
@LAYERS
def test_tokens_outside_the_table_raise(cls, wrong):
    tokens = torch.zeros(2, 9, dtype=torch.int64)
    tokens[1, 4] = wrong
    with pytest.raises(
        IndexError, match=f"`tokens` must name rows of the table, 0 .. 6, got {wrong}"
    ):
        make(cls, 3, 2)(Lookup(torch.randn(7, 6), tokens))


@pytest.mark.parametrize(
    "tokens", [torch.zeros(2, 9), torch.zeros(9, dtype=torch.int64)], ids=["floats", "one axis"]
)
def test_tokens_must_be_integers_with_two_axes(tokens):
    with pytest.raises(TypeError, match=r"`tokens` must be integers with the axes \(B, T\), got"):
        make(BDLRU, 3, 2)(Lookup(torch.randn(7, 6), tokens))


@pytest.mark.parametrize(
    ("dtype", "save_memory"), HALVES, ids=["autocast", "bfloat16", "bfloat16, save"]
)
@LAYERS
def test_lookups_in_half_precision_add_no_errors(cls, dtype, save_memory):
    """Gradients of rows that thousands of steps read must not be summed in bfloat16."""
    layer, table, tokens = (
        make(cls, 3, 2, save_memory=save_memory),
        torch.randn(4, 6),
        torch.randint(0, 4, (8, 500)),
    )
    found = []
    for look_up in (True, False):
        own, rows = copy.deepcopy(layer).to(dtype), table.to(dtype).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
            y = own(Lookup(rows, tokens))[0] if look_up else own(F.embedding(tokens, rows))[0]
        y.float().square().mean().backward()
        found.append([p.grad for p in own.parameters()])
    exact, rows = without_fused_op(layer), table.double()
    exact(rows[tokens])[0].square().mean().backward()
    for ours, theirs, truth in zip(*found, exact.parameters(), strict=True):
        assert relative(ours, truth.grad) <= 1.5 * relative(theirs, truth.grad) + 1e-3


@LAYERS
def test_save_memory_works_under_autocast(cls):
    """Under autocast, too, gates are not saved and gradients are the same."""
    layer, x, kept, gradients = make(cls, 8, 4), torch.randn(2, 200, 6), {}, {}
    for save_memory in (False, True):
        layer.save_memory, kept[save_memory] = save_memory, 0

        def count(y, save_memory=save_memory):
            kept[save_memory] += y.nbytes
            return y

        with (
            torch.autocast("cpu", torch.bfloat16),
            torch.autograd.graph.saved_tensors_hooks(count, lambda y: y),
        ):
            y, state = layer(x)
        gradients[save_memory] = torch.autograd.grad(
            y.float().sum() + state.sum(), list(layer.parameters())
        )
    assert kept[True] < kept[False] / 4
    torch.testing.assert_close(gradients[True], gradients[False], rtol=0, atol=0)


@needs_kernel
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
def test_a_backward_pass_under_autocast(save_memory):
    """A float32 forward pass has the same gradients if backward runs under autocast."""
    layer, table, tokens = (
        make(BDLRU, 9, 3, save_memory=save_memory),
        torch.randn(5, 6),
        torch.randint(0, 5, (2, 40)),
    )
    found = []
    for enabled in (False, True):
        leaves = [table.clone().requires_grad_(), *layer.parameters()]
        loss = layer(Lookup(leaves[0], tokens))[0].square().sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found.append(torch.autograd.grad(loss, leaves))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@needs_kernel
@pytest.mark.parametrize("lowest", [-1e3, -1e9, -math.inf])
@LAYERS
def test_an_input_gate_far_below_the_others(cls, lowest):
    """The other gates stay accurate although kernels subtract the input gate from them."""
    layer = make(cls, 9, 2)
    with torch.no_grad():
        layer.W_g.bias.view(-1, 3)[:, 2] = lowest
    x, state = torch.randn(2, 30, 6), torch.rand(2, 9, 2)
    assert (
        relative(layer(x, state)[0], without_fused_op(layer)(x.double(), state.double())[0]) < 1e-5
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("save_memory", [False, True], ids=["keep", "save"])
@LAYERS
def test_compiled_with_inputs_of_other_strides(cls, save_memory):
    layer, z = make(cls, 9, 3, save_memory=save_memory), torch.randn(20, 2, 6)
    W, found = torch.randn(6, 6, requires_grad=True), []

    def call(W):
        return layer((z @ W).transpose(0, 1))[0]

    for function in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
        found.append(torch.autograd.grad(function(W).square().sum(), (W, *layer.parameters())))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("gate", ["softmax", "hardmax", "sigmoid", "tanh"])
def test_a_nan_of_either_sign_propagates(gate, sign):
    gates, v = torch.randn(1, 4, 8, 2, 3), torch.randn(1, 4, 8, 2)
    gates[0, 1, 3, 0, 1] = torch.copysign(torch.tensor(math.nan), torch.tensor(sign))
    h, _ = gated_block_scan(gates, v, gate=gate)
    assert h[0, 1, 3, 0].isnan()
    assert h[0, :, :3].isfinite().all()


def test_a_model_with_tied_weights_has_second_derivatives():
    torch.manual_seed(0)
    model = LanguageModel(
        LMConfig(7, 4, 1, "bdlru", {"n_blocks": 2, "block_size": 2}, tie=True)
    ).double()
    tokens, found = torch.randint(0, 7, (2, 5)), []
    for fused in (True, False):
        x, _ = model.features(tokens)
        loss = (
            next_token_loss(x, model.head.weight, tokens)
            if fused
            else F.cross_entropy(model.head(x).flatten(0, 1), tokens.flatten())
        )
        first = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        found.append(
            (
                *first,
                *torch.autograd.grad(
                    sum(d.square().sum() for d in first), list(model.parameters())
                ),
            )
        )
    torch.testing.assert_close(*found, rtol=1e-8, atol=1e-10)


def scans_with_padding():
    """Scans of three steps, the second of which is masked and holds NaN."""
    mask = torch.tensor([[True, False, True]])

    def padded(*shape):
        x = torch.ones(1, 3, *shape)
        x[:, 1] = torch.nan
        return x

    return {
        "block": lambda b: block_scan(padded(1, 1, 1), b[..., None], mask=mask)[0],
        "companion": lambda b: companion_scan(padded(1, 2), b, mask=mask)[0],
        "gated block": lambda b: gated_block_scan(padded(1, 1, 2), b[..., None], mask=mask)[0],
        "gated companion": lambda b: gated_companion_scan(padded(1, 3), b, mask=mask)[0],
        "observer": lambda b: expanded_companion_scan(padded(1, 3), b, form="observer", mask=mask)[
            0
        ],
    }


@pytest.mark.parametrize("name", scans_with_padding())
def test_masked_steps_do_not_affect_transforms(name):
    scan, b = scans_with_padding()[name], torch.tensor([1.0, torch.nan, 2.0]).view(1, 3, 1)
    transformed = torch.func.grad(lambda b: scan(b).sum())(b)
    plain = b.clone().requires_grad_()
    scan(plain).sum().backward()
    assert plain.grad.isfinite().all()
    assert plain.grad[0, 1] == 0
    torch.testing.assert_close(transformed, plain.grad)


@pytest.mark.parametrize("name", ["W_v", "W_o"])
def test_an_added_bias_is_used_at_every_size(name):
    """The fused op does not support this bias, so the layer calls its projections."""
    layer, x = BDLRU(64, 64, 4), torch.randn(4, 512, 64)
    projection = getattr(layer, name)
    projection.bias = torch.nn.Parameter(torch.full((projection.out_features,), 5.0))
    torch.testing.assert_close(layer(x)[0][:, :8], layer(x[:, :8])[0], rtol=1e-4, atol=1e-4)
    layer(x)[0].sum().backward()
    assert projection.bias.grad is not None


def test_a_removed_gate_bias_is_zero():
    layer, x = BDLRU(64, 64, 4), torch.randn(4, 512, 64)
    before = layer(x)[0]
    layer.W_g.bias = None
    torch.testing.assert_close(layer(x)[0], before, rtol=1e-4, atol=1e-5)  # it was zero


def test_an_overridden_scan_is_used_at_every_size():
    class Silent(BDLRU):
        def scan(self, gates, v, h0, time):
            h, state = super().scan(gates, v, h0, time)
            return 0 * h, state

    assert (Silent(64, 64, 4)(torch.randn(4, 512, 64))[0] == 0).all()


def test_steps_start_from_zero():
    b_t = torch.randn(2, 3)
    assert torch.equal(block_step(torch.randn(2, 3, 3), b_t, None), b_t)
    assert torch.equal(
        companion_step(torch.randn(2, 3, 4), b_t, None),
        torch.cat([b_t[..., None], torch.zeros(2, 3, 3)], -1),
    )


def test_lstm_in_half_precision():
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = build_mixer("lstm", 8, {"hidden": 8})(torch.randn(1, 3, 8).bfloat16())
    assert y.isfinite().all()


def test_the_parallel_scan_on_the_meta_device():
    h, final = hop_scan(
        torch.randn(1, 5, 2, 3, 3, device="meta"), torch.randn(1, 5, 2, 3, device="meta")
    )
    assert (h.shape, final.shape) == ((1, 5, 2, 3), (1, 2, 3))
