"""Decoding in ONNX: the step of a language model, exported once and run without torch's help.

    pip install '.[onnx]'
    python examples/onnx_decode.py

One step is a few matrix products and a softmax, so it exports as standard operators. The states are
explicit inputs and outputs, of constant size. onnxruntime then generates the tokens of torch.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from statemix import LanguageModel, LMConfig


class Step(nn.Module):
    """The step of a model as a `forward`, which is what an exporter takes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, states: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        return self.model.step(tokens, states)


def start(model: LanguageModel, batch: int) -> list[Tensor]:
    """States of zero, one (batch, n, m) for each layer."""
    return [torch.zeros(batch, *block.mixer.state_shape) for block in model.blocks]


def export(model: LanguageModel, path: Path) -> None:
    """Write the step to `path`, for batches of any size."""
    batch = torch.export.Dim("batch")
    states = start(model, 2)
    program = torch.onnx.export(
        Step(model).eval(),
        (torch.tensor([1, 2]), states),
        dynamo=True,
        verbose=False,
        dynamic_shapes=({0: batch}, [{0: batch} for _ in states]),
    )
    program.save(path)


@torch.no_grad()
def decode_in_torch(model: LanguageModel, first: Tensor, count: int) -> np.ndarray:
    """Greedy tokens (count, B)."""
    tokens, states, found = first, start(model, len(first)), []
    for _ in range(count):
        logits, states = model.step(tokens, states)
        tokens = logits.argmax(-1)
        found.append(tokens.numpy())
    return np.stack(found)


def decode_in_onnx(path: Path, states: list[Tensor], first: Tensor, count: int) -> np.ndarray:
    """The same from the exported file."""
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_inputs()]
    tokens, values, found = first.numpy(), [state.numpy() for state in states], []
    for _ in range(count):
        logits, *values = session.run(None, dict(zip(names, [tokens, *values], strict=True)))
        tokens = logits.argmax(-1)
        found.append(tokens)
    return np.stack(found)


def main() -> None:
    parser = argparse.ArgumentParser(description="Export one step to ONNX, and decode with it.")
    parser.add_argument("--tokens", type=int, default=200)
    count = parser.parse_args().tokens

    torch.manual_seed(0)
    options = {"n_blocks": 16, "block_size": 4}
    model = LanguageModel(LMConfig(vocab=500, width=64, layers=2, options=options)).eval()
    first = torch.tensor([1, 2, 3])
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "step.onnx"
        export(model, path)
        ours = decode_in_torch(model, first, count)
        theirs = decode_in_onnx(path, start(model, len(first)), first, count)
    same = bool((ours == theirs).all())
    print(f"{count} tokens of {len(first)} sequences; onnxruntime gives the same tokens: {same}")
    assert same


if __name__ == "__main__":
    main()
