"""A language model around any mixer.

    x = E[tokens]
    x = x + mixer(norm(x)),    x = x + W_2 (silu(W_1 norm(x)) ⊙ W_3 norm(x))        for each layer
    logits = W norm(x)

Norms are RMS norms. The model has no positional encoding; order is visible only through the mixer,
so the length of a sequence is not limited. `states` is a list with the state of each layer's mixer.
To continue a sequence, pass the states that the previous call returned.
"""

import math
from typing import Any, cast

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statemix.config.model import LMConfig, MixerChoice
from statemix.layers.decode import step_of_block
from statemix.layers.gates import INIT_STD, make_linear
from statemix.layers.lookup import check_tokens
from statemix.layers.mixer import Mixer, build_mixer, check_mixed
from statemix.layers.mlp import SwiGLU
from statemix.layers.wrappers import innermost
from statemix.types import Mask, SequenceBounds

__all__ = [
    "LMBlock",
    "LanguageModel",
    "States",
    "count_parameters",
    "residual_outputs",
]

States = list[Any]
OUTPUTS = ("W_o", "W_out")  # attribute names of a mixer's output projection


class LMBlock(nn.Module):
    """A mixer and a gated MLP, each with a pre-norm and a residual connection."""

    def __init__(self, config: LMConfig, mixer: MixerChoice) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mixer = build_mixer(mixer.name, config.width, mixer.options)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = SwiGLU(config.width, config.mlp_width)

    def forward(
        self,
        x: Float[Tensor, "B T d"],
        state: Any = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Run all steps; return the residual stream and the mixer's final state."""
        mixed = self.mixer(self.mixer_norm(x), state, cu_seqlens=cu_seqlens, mask=mask)
        y, state = check_mixed(self.mixer, mixed, x)
        return self.after_mixer(x, y), state

    def step(
        self, x_t: Float[Tensor, "B d"], state: Any = None
    ) -> tuple[Float[Tensor, "B d"], Any]:
        """Run one step; return the residual stream and the mixer's next state."""
        fused = step_of_block(self.mixer_norm, self.mixer, self.mlp_norm, self.mlp, x_t, state)
        if fused is not None:
            return fused
        mixed = cast(Mixer, self.mixer).step(self.mixer_norm(x_t), state)
        y_t, state = check_mixed(self.mixer, mixed, x_t)
        return self.after_mixer(x_t, y_t), state

    def after_mixer(
        self, x: Float[Tensor, "*batch d"], y: Float[Tensor, "*batch d"]
    ) -> Float[Tensor, "*batch d"]:
        """Add the mixer's output y to the residual stream x, and apply the MLP."""
        x = x + y
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """Maps tokens (B, T) to logits (B, T, V) of the next tokens.

    Set `checkpointing` to recompute the activations of each block in the backward pass, which saves
    memory.
    """

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(LMBlock(config, mixer) for mixer in config.layer_mixers)
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = make_linear(config.width, config.vocab, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Reset the embedding and the projections that write to the residual stream.

        Both are N(0, σ²) with σ = 0.02, divided by √(2 · layers) for the projections, because
        2 · layers of them add up. Other parameters keep the initialisation of their layers.
        """
        nn.init.normal_(self.embedding.weight, std=INIT_STD)
        if self.config.tie:
            self.head.weight = self.embedding.weight
        for block in self.blocks:
            for output in residual_outputs(cast(LMBlock, block)):
                nn.init.normal_(output.weight, std=INIT_STD / math.sqrt(2 * self.config.layers))

    def forward(
        self,
        tokens: Integer[Tensor, "B T"],
        states: States | None = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T V"], States]:
        """Compute logits at every step and the final states.

        There is one state per row, or one per packed sequence if `cu_seqlens` is given.
        """
        x, states = self.features(tokens, states, cu_seqlens=cu_seqlens, mask=mask)
        return self.head(x), states

    def features(
        self,
        tokens: Integer[Tensor, "B T"],
        states: States | None = None,
        *,
        cu_seqlens: SequenceBounds | None = None,
        mask: Mask | None = None,
    ) -> tuple[Float[Tensor, "B T d"], States]:
        """Compute the inputs of the head; `next_token_loss` computes logits from them in chunks."""
        check_tokens("tokens", tokens, "(B, T)", self.embedding)
        x = self.embedding(tokens)
        after = []
        for block, state in zip(self.blocks, self._initial(states), strict=True):
            x, state = self._run(block, x, state, cu_seqlens, mask)  # noqa: PLW2901
            after.append(state)
        return self.norm(x), after

    def _run(
        self,
        block: nn.Module,
        x: Float[Tensor, "B T d"],
        state: Any,
        cu_seqlens: SequenceBounds | None,
        mask: Mask | None,
    ) -> tuple[Float[Tensor, "B T d"], Any]:
        """Run one block, with activation checkpointing if it is enabled."""
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(
                block, x, state, cu_seqlens=cu_seqlens, mask=mask, use_reentrant=False
            )
        return block(x, state, cu_seqlens=cu_seqlens, mask=mask)

    def step(
        self, tokens_t: Integer[Tensor, " B"], states: States | None = None
    ) -> tuple[Float[Tensor, "B V"], States]:
        """Compute the logits of one decoding step, in constant time and memory per step."""
        check_tokens("tokens_t", tokens_t, "(B)", self.embedding)
        x_t = self.embedding(tokens_t)
        after = []
        for block, state in zip(self.blocks, self._initial(states), strict=True):
            x_t, state = cast(LMBlock, block).step(x_t, state)  # noqa: PLW2901
            after.append(state)
        return self.head(self.norm(x_t)), after

    def _initial(self, states: States | None) -> States:
        """Return the initial state of each layer; None is the mixer's default."""
        if states is None:
            return [None] * len(self.blocks)
        if len(states) != len(self.blocks):
            raise ValueError(
                "`states` must have one entry per layer: "
                f"expected {len(self.blocks)}, got {len(states)}."
            )
        return states

    @property
    def state_size(self) -> int:
        """Number of scalars in the states of one sequence.

        It does not depend on the length, unless there is attention without a window; of its state,
        which grows with every step, the scalars of one step count.
        """
        return sum(cast(Mixer, cast(LMBlock, block).mixer).state_size for block in self.blocks)


def residual_outputs(block: LMBlock) -> list[nn.Linear]:
    """List the projections of a block whose outputs are added to the residual stream."""
    mixer = innermost(block.mixer)
    ends = [getattr(mixer, name) for name in OUTPUTS if hasattr(mixer, name)]
    return [*ends, block.mlp.W_2]


def count_parameters(config: LMConfig) -> int:
    """Count the parameters of the model of `config` without allocating them."""
    with torch.device("meta"):
        model = LanguageModel(config)
    return sum(p.numel() for p in model.parameters())
