"""Language models of other packages, of the sizes of our presets 2m-* and 20m-*.

transformers    Mamba and Mamba-2 without their CUDA kernels, which do not run on a CPU, and GPT-2
torch           an embedding, nn.LSTM, and a head that shares the embedding's weights

Each has a training step from tokens to a loss, and a decoding step with a state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["FOREIGN", "Foreign", "LSTMModel"]

_VOCAB = {"2m": 2048, "20m": 16_384}
_POSITIONS = 1 << 15  # of GPT-2, not counted in its size


@dataclass(frozen=True)
class Foreign:
    """A model, and its logits and next state from tokens (B, T) and a state."""

    model: nn.Module
    run: Callable[[Tensor, Any], tuple[Tensor, Any]]

    def loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the targets (B, T)."""
        logits, _ = self.run(tokens, False)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def step(self, tokens_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Logits (B, V) of the next token, and the next state."""
        logits, state = self.run(tokens_t.unsqueeze(1), state)
        return logits[:, -1], state


class LSTMModel(nn.Module):
    """An embedding, layers of nn.LSTM, and a head with the embedding's weights."""

    def __init__(self, vocab: int, width: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.cell = nn.LSTM(width, width, layers, batch_first=True)

    def forward(self, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """Logits (B, T, V), and the state (h, c) of `nn.LSTM`."""
        h, state = self.cell(self.embedding(tokens), state)
        return F.linear(h, self.embedding.weight), state


def _lstm(size: str) -> Foreign:
    width = {"2m": 256, "20m": 640}[size]
    model = LSTMModel(_VOCAB[size], width, 3)
    return Foreign(model, lambda tokens, state: model(tokens, state or None))


def _quietly(make: Callable[[], nn.Module]) -> nn.Module:
    """Build a model of transformers, and silence its advice to install CUDA kernels."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    return make()


def _with_cache(model: nn.Module, name: str) -> Foreign:
    """A model of transformers, whose cache has this name; a state of False asks for no cache."""

    def run(tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        options = {} if state is False or state is None else {name: state}
        out = model(tokens, use_cache=state is not False, **options)
        return out.logits, getattr(out, name, None)

    return Foreign(model, run)


def _mamba(size: str) -> Foreign:
    from transformers import MambaConfig, MambaForCausalLM

    width, layers = {"2m": (176, 8), "20m": (384, 15)}[size]
    config = MambaConfig(
        vocab_size=_VOCAB[size], hidden_size=width, num_hidden_layers=layers, state_size=16
    )
    return _with_cache(_quietly(lambda: MambaForCausalLM(config)), "cache_params")


def _mamba2(size: str) -> Foreign:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    width, layers = {"2m": (128, 12), "20m": (384, 16)}[size]
    config = Mamba2Config(
        vocab_size=_VOCAB[size],
        hidden_size=width,
        num_hidden_layers=layers,
        state_size=64,
        head_dim=32,
        num_heads=width // 16,
        n_groups=1,
    )
    return _with_cache(_quietly(lambda: Mamba2ForCausalLM(config)), "cache_params")


def _gpt2(size: str) -> Foreign:
    from transformers import GPT2Config, GPT2LMHeadModel

    width, layers, heads = {"2m": (184, 4, 4), "20m": (384, 8, 6)}[size]
    config = GPT2Config(
        vocab_size=_VOCAB[size],
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_positions=_POSITIONS,
        bos_token_id=0,
        eos_token_id=0,
    )
    return _with_cache(_quietly(lambda: GPT2LMHeadModel(config)), "past_key_values")


FOREIGN: dict[str, Callable[[str], Foreign]] = {
    "transformers Mamba": _mamba,
    "transformers Mamba-2": _mamba2,
    "transformers GPT-2": _gpt2,
    "torch LSTM": _lstm,
}
