"""`statemix.watch`: what the gates and states of the layers of any model do."""

import math

import pytest
import torch
from torch import nn

import statemix
from statemix import BDLRU, HLRU, LanguageModel, LMConfig, normalise


class Encoder(nn.Module):
    """A user's model that contains our layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = BDLRU(6, 5, 3, learn_initial_state=True)
        self.norm = nn.LayerNorm(6)
        self.second = HLRU(6, 4, 2, gate="tanh")

    def forward(self, x, mask=None):
        return self.second(self.norm(self.first(x, mask=mask)[0]), mask=mask)[0]


def test_the_model_computes_the_same_while_it_is_watched():
    model, x = Encoder(), torch.randn(2, 7, 6)
    expected = model(x)
    with statemix.watch(model) as seen:
        y = model(x)
        y.sum().backward()
    torch.testing.assert_close(y, expected, rtol=0, atol=0)
    assert [layer.layer for layer in seen.layers] == ["first", "second"]
    model(x)
    assert [(layer.calls, layer.steps) for layer in seen.layers] == [(1, 14), (1, 14)]


@pytest.mark.parametrize("masked", [False, True])
def test_the_summary_of_a_layer(masked):
    layer, x = BDLRU(6, 5, 3, learn_initial_state=True), 9 * torch.randn(2, 7, 6)
    mask = torch.rand(2, 7) > 0.4 if masked else torch.ones(2, 7, dtype=torch.bool)
    with statemix.watch(layer) as seen:
        layer(x, mask=mask)
    w = normalise(layer.W_g(x).unflatten(2, (5, 3, 4)))[mask].double()
    _, h = layer.trace(x, mask=mask)
    h = h[mask]
    (summary,) = seen.layers
    assert summary.steps == int(mask.sum())
    assert summary.entropy == pytest.approx(
        (-(w * w.log()).sum(-1) / math.log(4)).mean().item(), rel=1e-5
    )
    assert summary.saturation == pytest.approx((w.amax(-1) > 0.99).double().mean().item())
    assert summary.input_share == pytest.approx(w[..., -1].mean().item(), rel=1e-5)
    assert summary.horizon == pytest.approx(-1 / (-w[..., -1]).log1p().mean().item(), rel=1e-4)
    assert summary.state_rms == pytest.approx(h.square().mean().sqrt().item(), rel=1e-5)
    assert summary.largest_state == pytest.approx(h.abs().amax().item())
    assert (summary.dead_blocks, summary.blocks) == (0, 5)


def test_dead_blocks_are_those_whose_states_never_change():
    layer = BDLRU(6, 5, 3)
    with torch.no_grad():
        layer.W_v.weight[3:9] = 0.0  # the drivers of the blocks 1 and 2
    with statemix.watch(layer) as seen:
        layer(torch.randn(2, 50, 6))
    assert (seen.layers[0].dead_blocks, seen.layers[0].blocks) == (2, 5)


def test_packed_sequences_and_given_states():
    layer, x = HLRU(6, 5, 3), torch.randn(1, 9, 6)
    bounds = torch.tensor([0, 4, 9])
    state = torch.randn(2, 5, 3)
    with statemix.watch(layer) as packed:
        layer(x, state, cu_seqlens=bounds)
    with statemix.watch(layer) as apart:
        layer(x[:, :4], state=state[:1])
        layer(x=x[:, 4:], state=state[1:])
    assert packed.layers[0].state_rms == pytest.approx(apart.layers[0].state_rms)
    assert packed.layers[0].steps == apart.layers[0].steps
    assert apart.layers[0].calls == 2


def test_the_extremes_of_entropy_and_horizon():
    layer = BDLRU(4, 3, 2)
    with torch.no_grad():
        layer.W_g.weight.zero_()
        layer.W_g.bias.zero_()
    x = torch.randn(1, 5, 4)
    with statemix.watch(layer) as even:
        layer(x)
    assert even.layers[0].entropy == pytest.approx(1)
    assert even.layers[0].input_share == pytest.approx(1 / 3)
    with torch.no_grad():
        layer.W_g.bias.view(3, 2, 3)[..., 0] = 100.0
    with statemix.watch(layer) as hard:
        layer(x)
    assert hard.layers[0].entropy == pytest.approx(0)
    assert hard.layers[0].saturation == 1
    assert hard.layers[0].horizon > 1e6


def test_the_table():
    model = LanguageModel(
        LMConfig(20, 16, 2, mixer="bdlru", options={"n_blocks": 3, "block_size": 2})
    )
    with statemix.watch(model) as seen:
        model(torch.randint(0, 20, (2, 9)))
    header, *rows = str(seen).splitlines()
    assert header.split()[:4] == ["layer", "calls", "steps", "entropy"]
    assert [row.split()[:3] for row in rows] == [
        ["blocks.0.mixer", "1", "18"],
        ["blocks.1.mixer", "1", "18"],
    ]


def test_a_model_without_our_layers_is_rejected():
    with pytest.raises(ValueError, match="Linear has no BD-LRU or H-LRU layer"):
        statemix.watch(nn.Linear(2, 2))
