"""One step of layers and language models through torch.export and ONNX.

`tests/test_compile.py` exports full sequences.
"""

import pytest
import torch
from torch import Tensor, nn

from statemix import BDLRU, HLRU, LanguageModel, LMConfig

BATCH = torch.export.Dim("batch")
LAYERS = {
    "bdlru": BDLRU(8, 5, 3, learn_initial_state=True),
    "tanh": BDLRU(8, 5, 3, gate="tanh"),
    "hardmax": BDLRU(8, 5, 3, gate="hardmax"),
    "hlru": HLRU(8, 5, 3),
    "observer": HLRU(8, 5, 3, form="observer"),
}


class Step(nn.Module):
    """`step` as a module, because exporters take a `forward`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x_t: Tensor, state):
        return self.model.step(x_t, state)


@pytest.fixture(scope="module")
def language_model() -> LanguageModel:
    torch.manual_seed(0)
    options = {"n_blocks": 6, "block_size": 3}
    model = LanguageModel(LMConfig(30, 16, 2, options=options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)  # so that the tokens vary
    return model


def zero_states(model: LanguageModel, batch: int) -> list[Tensor]:
    return [torch.zeros(batch, *block.mixer.state_shape) for block in model.blocks]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_a_layer_exports_for_any_batch(layer):
    x_t, state = torch.randn(2, 8), torch.randn(2, 5, 3)
    shapes = ({0: BATCH}, {0: BATCH})
    program = torch.export.export(Step(layer), (x_t, state), dynamic_shapes=shapes)
    assert not [n for n in program.graph.nodes if "statemix" in str(n.target)]  # plain torch ops
    x_t, state = torch.randn(7, 8), torch.randn(7, 5, 3)
    for ours, theirs in zip(program.module()(x_t, state), layer.step(x_t, state), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.usefixtures("unchecked")
def test_a_language_model_exports_for_any_batch(language_model):
    arguments = (torch.tensor([1, 2]), zero_states(language_model, 2))
    shapes = ({0: BATCH}, [{0: BATCH}] * 2)
    program = torch.export.export(Step(language_model), arguments, dynamic_shapes=shapes)
    arguments = (torch.tensor([3, 4, 5]), zero_states(language_model, 3))
    logits, states = program.module()(*arguments)
    expected, expected_states = language_model.step(*arguments)
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(states, expected_states)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.filterwarnings("ignore")  # torch's exporter uses what torch deprecates
def test_onnxruntime_generates_the_same_tokens(language_model, tmp_path):
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    arguments = (torch.tensor([1, 2]), zero_states(language_model, 2))
    program = torch.onnx.export(
        Step(language_model),
        arguments,
        dynamo=True,
        dynamic_shapes=({0: BATCH}, [{0: BATCH}] * 2),
        verbose=False,
    )
    program.save(tmp_path / "step.onnx")
    session = runtime.InferenceSession(tmp_path / "step.onnx")
    names = [each.name for each in session.get_inputs()]
    tokens = torch.tensor([7, 11, 13])
    states = zero_states(language_model, 3)
    values = [tokens.numpy(), *(state.numpy() for state in states)]
    generated = []
    for _ in range(40):
        with torch.no_grad():
            logits, states = language_model.step(tokens, states)
        tokens = logits.argmax(-1)
        outputs = session.run(None, dict(zip(names, values, strict=True)))
        values = [outputs[0].argmax(-1), *outputs[1:]]
        assert values[0].tolist() == tokens.tolist()
        torch.testing.assert_close(
            torch.from_numpy(outputs[0]), logits.detach(), rtol=1e-4, atol=1e-4
        )
        generated.append(tokens.tolist())
    assert len({tuple(step) for step in generated}) > 5
