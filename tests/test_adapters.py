"""What other libraries do to layers: adapters, quantisation, parametrisations.

The fused kernels read the tensors of plain projections, so each of these must switch them off.
"""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from statemix import BDLRU, HLRU, LanguageModel, LMConfig

LAYERS = {
    "bdlru": lambda: BDLRU(16, 6, 4),
    "hlru": lambda: HLRU(16, 6, 3),
    "save_memory": lambda: BDLRU(16, 6, 4, save_memory=True),
    "fused": lambda: BDLRU(128, 128, 8),  # runs as one op when it is plain
}
every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=list(LAYERS))


class First(nn.Module):
    """A model of one layer, which returns its outputs only."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight / 2


def steps(layer: nn.Module, x: Tensor) -> Tensor:
    """The outputs of `layer` one step at a time."""
    outputs, state = [], None
    for x_t in x.unbind(1):
        y_t, state = layer.step(x_t, state)
        outputs.append(y_t)
    return torch.stack(outputs, 1)


def relative_error(y: Tensor, exact: Tensor) -> float:
    return ((y - exact).norm() / exact.norm()).item()


@every_layer
def test_lora_trains_and_merges(make):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    layer = make()
    x = torch.randn(2, 65, layer.d_model)
    before = layer(x)[0].detach()
    config = peft.LoraConfig(
        r=2, target_modules=["W_g", "W_v", "W_o"], lora_alpha=4, init_lora_weights=False
    )
    model = peft.get_peft_model(First(layer), config)
    y = model(x)
    assert relative_error(y, before) > 0.01
    y.sum().backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained == {name for name, p in model.named_parameters() if "lora_" in name}
    torch.testing.assert_close(steps(layer, x[:, :5]), y[:, :5])
    merged = model.merge_and_unload()
    torch.testing.assert_close(merged(x), y, rtol=1e-4, atol=1e-5)


@every_layer
@pytest.mark.parametrize(
    "config", ["Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"]
)
def test_torchao_quantisation(make, config):
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    layer = make()
    x = torch.randn(2, 65, layer.d_model)
    exact = layer(x)[0].detach()
    quantization.quantize_(layer, getattr(quantization, config)())
    y = layer(x)[0]
    assert 0 < relative_error(y, exact) < 0.03
    assert relative_error(steps(layer, x[:, :5]), y[:, :5]) < 0.01


@every_layer
@pytest.mark.filterwarnings("ignore")  # torch deprecates its older quantisation
def test_dynamic_quantisation_of_torch(make):
    layer = make()
    x = torch.randn(2, 65, layer.d_model)
    exact = layer(x)[0].detach()
    model = torch.ao.quantization.quantize_dynamic(First(layer), {nn.Linear}, dtype=torch.qint8)
    assert type(model.layer.W_g) is not nn.Linear
    y = model(x)
    assert 0 < relative_error(y, exact) < 0.06
    assert relative_error(steps(model.layer, x[:, :5]), y[:, :5]) < 0.06
    with pytest.raises(TypeError, match="must have the dtype of the layer, torch.float32"):
        model(x.double())


def test_a_quantised_language_model():
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    options = {"n_blocks": 8, "block_size": 4}
    model = LanguageModel(LMConfig(50, 32, 2, options=options))
    tokens = torch.randint(0, 50, (2, 20))
    exact = model(tokens)[0].detach()
    quantization.quantize_(model, quantization.Int8WeightOnlyConfig())
    assert 0 < relative_error(model(tokens)[0], exact) < 0.03


@every_layer
def test_parametrisations(make):
    layer = make()
    x = torch.randn(2, 65, layer.d_model)
    with torch.no_grad():
        halved = make()
        halved.load_state_dict(layer.state_dict())
        halved.W_o.weight /= 2
        exact = halved(x)[0]
    parametrizations.weight_norm(layer.W_v)
    parametrize.register_parametrization(layer.W_o, "weight", Half())
    y = layer(x)[0]
    torch.testing.assert_close(y, exact, rtol=1e-4, atol=1e-6)
    y.sum().backward()
    assert layer.W_v.parametrizations.weight.original1.grad.abs().sum() > 0
    torch.testing.assert_close(steps(layer, x[:, :5]), y[:, :5], rtol=1e-4, atol=1e-6)


def test_a_parametrised_initial_state():
    layer = BDLRU(8, 3, 2, learn_initial_state=True)
    with torch.no_grad():
        layer.h0.fill_(100.0)
    parametrize.register_parametrization(layer, "h0", nn.Tanh())
    x = torch.zeros(1, 1, 8)
    assert layer.trace(x)[1].abs().max() <= 1
    layer(x)[0].sum().backward()
    assert layer.parametrizations.h0.original.grad is not None
