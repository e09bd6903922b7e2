"""Channel mixers: position-wise networks that alternate with the sequence mixers."""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from statemix.layers.gates import make_linear
from statemix.layers.weights import project
from statemix.ops.check import check_choice
from statemix.ops.dispatch.dense import gated_activation

__all__ = [
    "CHANNEL_MIXERS",
    "MLP",
    "NoChannelMixer",
    "PublishedMLP",
    "PublishedSwiGLU",
    "SwiGLU",
    "build_channel_mixer",
]


class SwiGLU(nn.Module):
    """y = W_2 (silu(W_1 x) ⊙ W_3 x).

    Args:
        inner: inner width (default: 8/3 d_model, rounded up to a multiple of 8).
    """

    def __init__(self, d_model: int, inner: int | None = None) -> None:
        super().__init__()
        inner = -(-8 * d_model // 3 // 8) * 8 if inner is None else inner
        self.W_1 = make_linear(d_model, inner, bias=False)
        self.W_3 = make_linear(d_model, inner, bias=False)
        self.W_2 = make_linear(inner, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return project(self.W_2, gated_activation(project(self.W_1, x), project(self.W_3, x)))


class MLP(nn.Module):
    """y = W_2 gelu(W_1 x), with an inner width of 4 d."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.W_1 = make_linear(d_model, 4 * d_model)
        self.W_2 = make_linear(4 * d_model, d_model)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return self.W_2(F.gelu(self.W_1(x)))


class NoChannelMixer(nn.Module):
    """y = 0: the block leaves the residual stream unchanged."""

    def __init__(self, d_model: int) -> None:
        super().__init__()

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return torch.zeros_like(x)


class PublishedSwiGLU(SwiGLU):
    """`SwiGLU` as in the published models: its inner width is a multiple of 16."""

    def __init__(self, d_model: int) -> None:
        super().__init__(d_model, -(-8 * d_model // 3 // 16) * 16)


class PublishedMLP(nn.Module):
    """y = W_2 gelu(W_1 x) as in the published models: GELU's tanh form, and no biases."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.W_1 = make_linear(d_model, 4 * d_model, bias=False)
        self.W_2 = make_linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        return project(self.W_2, F.gelu(project(self.W_1, x), approximate="tanh"))


CHANNEL_MIXERS: dict[str, type[nn.Module]] = {
    "swiglu": SwiGLU,
    "mlp": MLP,
    "published_swiglu": PublishedSwiGLU,
    "published_mlp": PublishedMLP,
    "none": NoChannelMixer,
}


def build_channel_mixer(name: str, d_model: int) -> nn.Module:
    """Build the channel mixer called `name`."""
    check_choice("channel mixer", name, CHANNEL_MIXERS)
    return CHANNEL_MIXERS[name](d_model)
