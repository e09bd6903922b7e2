"""How gates and positions start."""

import math

import pytest
import torch

from statemix import BDLRU, HLRU
from statemix.layers.init import INITS, GateInit, find_init
from statemix.models import Autoencoder, ModelConfig
from statemix.models.autoencoder import draw_positions


@pytest.mark.parametrize("selectivity", ["full", "pointwise"])
@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_the_bias_keeps_every_state(cls, selectivity):
    """With closed input gates and a large bias, a state stays what it is."""
    init = {"std": 0.0, "own_bias": 60.0, "input_bias": -60.0}
    layer = cls(5, 3, 2, selectivity=selectivity, init=init)
    state = torch.randn(2, 3, 2)
    _, after = layer(torch.randn(2, 7, 5), state)
    kept = state if cls is BDLRU else state[..., :1].expand(-1, -1, 2)
    torch.testing.assert_close(after, kept, rtol=0, atol=1e-6)


@pytest.mark.parametrize("cls", [BDLRU, HLRU])
def test_the_start_is_drawn_again_on_reset(cls):
    layer = cls(64, 32, 2, init="hold")
    assert layer.W_g.weight.std().item() == pytest.approx(0.3, rel=0.05)
    bias = layer.W_g.bias.detach().clone()
    assert set(bias.tolist()) == {0.0, INITS["hold"].own_bias}
    with torch.no_grad():
        layer.W_g.weight.zero_()
        layer.W_g.bias.zero_()
    layer.W_g.reset_parameters()  # as FSDP does, module by module
    assert layer.W_g.weight.std().item() == pytest.approx(0.3, rel=0.05)
    torch.testing.assert_close(layer.W_g.bias, bias)


def test_the_papers_start_is_the_default():
    torch.manual_seed(0)
    ours = BDLRU(8, 4, 3)
    torch.manual_seed(0)
    named = BDLRU(8, 4, 3, init="paper")
    for p, q in zip(ours.parameters(), named.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)
    assert not ours.W_g.bias.any()


@pytest.mark.parametrize(
    ("init", "message"),
    [
        ("nothing", "Unknown init 'nothing'. Available: paper, select, hold."),
        ({"scale": 1.0}, "Unknown fields of `init`: scale. Available: std, own_bias, input_bias."),
        ({"std": -1.0}, "The `std` of `init` must not be negative, got -1.0."),
        ({"std": float("nan")}, "The `std` of `init` must be a finite number, got nan."),
        ({"own_bias": "x"}, "The `own_bias` of `init` must be a finite number, got 'x'."),
        (2, "`init` must be a name or a mapping of fields, got 2."),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_wrong_start_is_named(init, message):
    with pytest.raises(ValueError, match=message):
        BDLRU(8, 4, 3, init=init)


def test_fixed_gates_have_the_papers_start_only():
    with pytest.raises(ValueError, match="`init` needs gates that depend on the input"):
        BDLRU(8, 4, 3, selectivity="none", init="hold")
    assert find_init({"std": 0.02}) == GateInit()
    BDLRU(8, 4, 3, selectivity="none")


def test_smooth_positions_change_slowly():
    torch.manual_seed(0)
    smooth = draw_positions("smooth", 0.1, 64, 4096)
    noise = draw_positions("normal", 0.1, 64, 4096)
    assert smooth.std().item() == pytest.approx(0.1, rel=0.05)
    assert noise.std().item() == pytest.approx(0.1, rel=0.05)

    def correlation(x, lag):
        return ((x[lag:] * x[:-lag]).mean() / x.square().mean()).item()

    # E cos(w lag) = exp(-lag² / 32) for w ~ N(0, 1/4²)
    assert correlation(smooth, 1) == pytest.approx(math.exp(-1 / 32), abs=0.02)
    assert correlation(smooth, 4) == pytest.approx(math.exp(-16 / 32), abs=0.05)
    assert abs(correlation(noise, 1)) < 0.02


def test_the_autoencoder_uses_them():
    config = ModelConfig(options={"n_blocks": 2}, positions="smooth", position_std=0.5)
    positions = Autoencoder(config, 5, 5, 32).positions
    assert positions.std().item() == pytest.approx(0.5, rel=0.2)
