"""Low-rank gates: the layer is that with the product of the two factors as its gate weights."""

import pytest
import torch
from cases import bounds

from statemix import BDLRU, HLRU
from statemix.layers.split import _check_divisible

LAYERS = {
    "bdlru": lambda rank, **options: BDLRU(12, 3, 4, gate_rank=rank, **options),
    "hlru": lambda rank, **options: HLRU(12, 5, 3, gate_rank=rank, **options),
}
EACH = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)


def pair(make):
    """A low-rank layer, and the layer of full rank with the same gates."""
    torch.manual_seed(0)
    low, full = make(2).double(), make(None).double()
    for parameter in low.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    with torch.no_grad():
        full.W_g.weight.copy_(low.W_g.weight @ low.W_g.project.weight)
        full.W_g.bias.copy_(low.W_g.bias)
        full.W_v.weight.copy_(low.W_v.weight)
        full.W_o.weight.copy_(low.W_o.weight)
    return low, full


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-11)


OPTIONS = {
    "plain": {},
    "packed": {"cu_seqlens": bounds([4, 0, 1, 5])},
    "masked": {"mask": torch.arange(10)[None] % 3 != 1},
    "reversed": {"reverse": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@EACH
def test_the_product_of_the_factors_gives_the_same_layer(make, options):
    low, full = pair(make)
    x = torch.randn(1, 10, 12, dtype=torch.float64, requires_grad=True)
    ours, theirs = low(x, **options), full(x, **options)
    close(ours, theirs)
    dx, du, dp, dc = torch.autograd.grad(
        ours[0].square().sum(), [x, low.W_g.weight, low.W_g.project.weight, low.W_g.bias]
    )
    truth, dw, dbias = torch.autograd.grad(
        theirs[0].square().sum(), [x, full.W_g.weight, full.W_g.bias]
    )
    close([dx, dc], [truth, dbias])
    close([du, dp], [dw @ low.W_g.project.weight.T, low.W_g.weight.T @ dw])


@EACH
def test_stepping_and_tracing_equal_the_forward_pass(make):
    low, _ = pair(make)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    y, final = low(x)
    traced, states = low.trace(x)
    state, outputs = None, []
    for t in range(7):
        y_t, state = low.step(x[:, t], state)
        outputs.append(y_t)
    close([torch.stack(outputs, 1), state], [y, final])
    close([traced, states[:, -1]], [y, final])


def test_a_quarter_of_the_gate_weights_suffices_for_rank_64():
    with torch.device("meta"):
        low, full = BDLRU(512, 28, 16, gate_rank=64), BDLRU(512, 28, 16)
    count = [sum(p.numel() for p in layer.W_g.parameters()) for layer in (low, full)]
    assert 4 * count[0] <= count[1]


def test_raw_gates_start_with_the_variance_of_full_gates():
    torch.manual_seed(0)
    low, full = (BDLRU(64, 64, 4, gate_rank=rank) for rank in (16, None))
    x = torch.randn(200, 64)
    assert low.W_g(x).std().item() == pytest.approx(full.W_g(x).std().item(), rel=0.1)
    held = BDLRU(64, 64, 4, gate_rank=16, init={"std": 0.1, "own_bias": 3.0})
    assert held.W_g.weight.std().item() == pytest.approx(0.1, rel=0.05)
    assert (held.W_g.bias.view(held.gate_shape).diagonal(0, 1, 2) == 3.0).all()


@EACH
def test_sharpening_multiplies_the_raw_gates(make):
    low, _ = pair(make)
    x = torch.randn(3, 12, dtype=torch.float64)
    before = low.W_g(x)
    low.sharpen(1.5)
    close(low.W_g(x), 1.5 * before)


@pytest.mark.usefixtures("unchecked")
@EACH
def test_errors(make):
    for options, message in (
        ({"rank": 0}, "`gate_rank` must be at least 1, got 0"),
        ({"rank": 1.5}, "`gate_rank` must be a whole number, got 1.5"),
        ({"rank": 2, "selectivity": "none"}, "`gate_rank` needs selectivity 'full', got 'none'"),
        ({"rank": 2, "save_memory": True}, "leave `gate_rank` at None, got 2"),
    ):
        with pytest.raises(ValueError, match=message):
            make(**options)
    with pytest.raises(ValueError, match="Only layers with full gates can be divided.* at mixer"):
        _check_divisible("mixer", make(2), 2)
