"""Compiled functions that are no scans: gated activation, cross-entropy, and steps of decoding."""

import copy
import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from statemix import BDLRU, HLRU
from statemix.kernels.cpu.library import Missing, load
from statemix.models import LanguageModel, LMConfig
from statemix.models.lm import LMBlock
from statemix.models.loss import IGNORED, next_token_loss
from statemix.ops.dispatch.dense import gated_activation, softmax_minus_onehot
from statemix.ops.dispatch.step import fused_layer_step

pytestmark = pytest.mark.skipif(isinstance(load(), Missing), reason="no compiled CPU library")
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
LAYERS = pytest.mark.parametrize("cls", [BDLRU, HLRU])
COUNTS = pytest.mark.parametrize("count", [1, 7, 8, 9, 65])


def plain_gated_activation(a, b):
    return F.silu(a) * b


@DTYPES
@COUNTS
def test_gated_activation(dtype, count):
    """Errors are at most twice those of plain torch in the same dtype."""
    a, b, dy = ((3 * torch.randn(4, count)).to(dtype) for _ in range(3))

    def run(f, kind):
        leaves = [y.to(kind).requires_grad_() for y in (a, b)]
        y = f(*leaves)
        return [z.double() for z in (y, *torch.autograd.grad(y, leaves, dy.to(kind)))]

    exact = run(plain_gated_activation, torch.float64)
    for ours, theirs, truth in zip(
        run(gated_activation, dtype), run(plain_gated_activation, dtype), exact, strict=True
    ):
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm() + 1e-7 * truth.norm()


def test_gated_activation_of_large_and_nan_inputs():
    a = torch.tensor([-1e4, -90.0, 0.0, 90.0, 1e4, torch.nan, 1.0])
    b = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 1.0, torch.nan])
    y = gated_activation(a, b)
    torch.testing.assert_close(y, F.silu(a) * b, rtol=1e-6, atol=1e-30, equal_nan=True)


def test_second_derivatives_of_the_gated_activation():
    a, b = (torch.randn(9, dtype=torch.float32, requires_grad=True) for _ in range(2))

    def curvature(f):
        first = torch.autograd.grad(f(a, b).sum(), (a, b), create_graph=True)
        return torch.autograd.grad(sum(y.square().sum() for y in first), (a, b))

    torch.testing.assert_close(
        curvature(gated_activation), curvature(plain_gated_activation), rtol=1e-4, atol=1e-5
    )


def test_other_inputs_run_plain_torch():
    a = torch.randn(3, dtype=torch.float64)
    assert torch.equal(gated_activation(a, a), F.silu(a) * a)
    a, b = torch.randn(2, 1), torch.randn(3)
    assert torch.equal(gated_activation(a, b), F.silu(a) * b)


@DTYPES
@pytest.mark.parametrize("classes", [1, 5, 8, 21, 64])
def test_cross_entropy_and_its_gradient(dtype, classes):
    logits = (4 * torch.randn(11, classes)).to(dtype)
    targets = torch.randint(classes, (11,))
    targets[3] = IGNORED
    exact = logits.double().requires_grad_()
    loss = F.cross_entropy(exact, targets, ignore_index=IGNORED, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, exact)
    assert softmax_minus_onehot(logits, targets, IGNORED, gradient=False) == pytest.approx(
        float(loss.detach()), rel=1e-6, abs=1e-6
    )
    found = logits.clone()
    softmax_minus_onehot(found, targets, IGNORED, gradient=True)
    rounded = gradient.to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-2
    assert found.dtype == dtype
    assert (found.double() - gradient).norm() <= tolerance * gradient.norm() + 1e-6
    assert not found[3].any()
    assert not rounded[3].any()


def test_cross_entropy_of_masked_nan_and_infinite_logits():
    logits = torch.randn(6, 19)
    logits[0, 4:] = -torch.inf
    logits[1, 18] = torch.nan
    logits[2, 3] = torch.nan
    logits[3, 0] = torch.inf
    targets = torch.tensor([1, 0, 0, 0, 2, 3])
    for row, target in zip(logits, targets, strict=True):
        expected = F.cross_entropy(row[None], target[None])
        found = softmax_minus_onehot(row[None].clone(), target[None], IGNORED, gradient=True)
        torch.testing.assert_close(
            torch.tensor(found, dtype=torch.float32), expected, equal_nan=True
        )


def test_losses_do_not_depend_on_threads():
    x, W = torch.randn(300, 16, requires_grad=True), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(50, (300,))
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        loss = next_token_loss(x, W, targets)
        results.append((loss, *torch.autograd.grad(loss, (x, W))))
    torch.set_num_threads(1)
    for one, two in zip(*results, strict=True):
        assert torch.equal(one, two)


def randomised(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


@pytest.mark.parametrize(("m", "n"), [(1, 9), (2, 3), (4, 17), (5, 1), (11, 5), (16, 8)])
@pytest.mark.parametrize("B", [1, 2, 3, 8, 13])
@pytest.mark.parametrize("gate", ["softmax", "relu", "hardmax"])
@LAYERS
def test_a_fused_step_of_a_layer_equals_its_lines(cls, gate, B, m, n):
    layer = randomised(cls(6, n, m, gate=gate, learn_initial_state=True))
    exact = copy.deepcopy(layer).double()
    x, state = torch.randn(B, 6), torch.randn(B, n, m)
    for given in (state, None):
        with torch.no_grad():
            fused = fused_layer_step(x, layer._weights(), given, layer.recurrence, gate)
            assert fused is not None
            ours = layer.step(x, given)
            truth = exact.step(x.double(), None if given is None else given.double())
        for one, right in zip(ours, truth, strict=True):
            torch.testing.assert_close(one.double(), right, rtol=1e-4, atol=1e-5)


def block(mixer="bdlru"):
    options = {"bdlru": {"n_blocks": 5, "block_size": 3}, "hlru": {"n_channels": 7, "order": 2}}
    config = LMConfig(vocab=11, width=12, layers=1, mixer=mixer, options=options[mixer])
    return randomised(LMBlock(config, config.layer_mixers[0]))


@pytest.mark.parametrize("B", [1, 5])
@pytest.mark.parametrize("mixer", ["bdlru", "hlru"])
def test_a_fused_step_of_a_block_equals_its_lines(mixer, B):
    module = block(mixer)
    x = torch.randn(B, 12)
    state = torch.randn(B, *module.mixer.state_shape)
    expected = module.step(x, state)  # gradients are enabled, so this runs line by line
    with torch.inference_mode():
        found = module.step(x, state)
    assert not found[0].requires_grad
    assert expected[0].requires_grad
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def parts(module):
    norms = (module.mixer_norm, module.mlp_norm)
    return (*norms, module.mlp, module.mlp.W_1, module.mlp.W_2, module.mixer.W_g, module.mixer.W_o)


def test_hooks_run_in_a_step():
    for i in range(len(parts(block()))):
        module = block()
        calls = []
        parts(module)[i].register_forward_hook(lambda *_, calls=calls: calls.append(1))
        with torch.inference_mode():
            module.step(torch.randn(2, 12))
        assert calls, i


def test_an_overridden_step_runs():
    class Mine(BDLRU):
        def step(self, x_t, state=None):
            y, state = super().step(x_t, state)
            return y + 1, state

    module = block()
    x = torch.randn(2, 12)
    mine = Mine(12, 5, 3)
    mine.load_state_dict(module.mixer.state_dict())
    module.mixer = mine
    with torch.inference_mode():
        found, _ = module.step(x)
    expected, _ = module.step(x)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_step_line_by_line(dtype):
    module = block().to(dtype)
    with torch.inference_mode():
        x, _ = module.step(torch.randn(2, 12, dtype=dtype))
    assert x.dtype == dtype


def test_steps_of_a_model_equal_forward():
    config = LMConfig(
        vocab=19, width=16, layers=3, mixer="bdlru", options={"n_blocks": 4, "block_size": 4}
    )
    model = randomised(LanguageModel(config)).eval()
    tokens = torch.randint(19, (3, 20))
    with torch.inference_mode():
        expected, _ = model(tokens)
        states = None
        for t, logits in itertools.zip_longest(range(20), expected.unbind(1)):
            found, states = model.step(tokens[:, t], states)
            torch.testing.assert_close(found, logits, rtol=1e-3, atol=1e-3)
