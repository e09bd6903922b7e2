"""A language model around any mixer.

    x = E[tokens]
    x = x + mixer(norm(x)),    x = x + W_2 (silu(W_1 norm(x)) ⊙ W_3 norm(x))        for each layer
    logits = W norm(x)

Norms are RMS norms.  There are no positions: what a step knows of time, its states told it, so a sequence may go on for ever.
`states` is one entry a layer, whatever its mixer returns: pass back what a call gave to go on where it stopped.
"""

import math
from typing import Any, cast

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from statemix.config.model import LMConfig
from statemix.layers.gates import INIT_STD, make_linear
from statemix.layers.mixer import Mixer, build_mixer, check_mixed
from statemix.layers.mlp import SwiGLU
from statemix.ops.check import check_tensor
from statemix.types import Mask, SequenceBounds

States = list[Any]
OUTPUTS = ("W_o", "W_out")  # what mixers call the projection that they end with


class LMBlock(nn.Module):
    """A mixer and a gated MLP, each behind a norm and beside the residual stream."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.mixer_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mixer = build_mixer(config.mixer, config.width, config.options)
        self.mlp_norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.mlp = SwiGLU(config.width, config.mlp_width)

    def forward(
        self,
        x: Tensor,
        state: Any = None,
        *,
        cu_seqlens: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Any]:
        y, state = check_mixed(
            self.mixer, self.mixer(self.mixer_norm(x), state, cu_seqlens=cu_seqlens, mask=mask), x
        )
        return self.leave(x, y), state

    def step(self, x_t: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        y_t, state = check_mixed(
            self.mixer, cast(Mixer, self.mixer).step(self.mixer_norm(x_t), state), x_t
        )
        return self.leave(x_t, y_t), state

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The residual stream after the block, given what the mixer adds."""
        x = x + y
        return x + self.mlp(self.mlp_norm(x))


class LanguageModel(nn.Module):
    """Tokens (B, T) to logits (B, T, V) of the tokens that follow.

    `checkpointing`, when set, computes the blocks again in the backward pass instead of keeping what is inside them.
    """

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config, self.checkpointing = config, False
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(LMBlock(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = make_linear(config.width, config.vocab, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """N(0, 0.02) where the layers do not draw otherwise, and less where 2 · layers outputs add up in the residual stream."""
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
        """Logits at every step and the states after the last: one a row, or one a sequence that `cu_seqlens` packs."""
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
        """What the head reads, so that a loss need not hold the logits of all steps at once (`next_token_loss`)."""
        check_tokens("tokens", tokens, "(B, T)", self.embedding.num_embeddings)
        x, after = self.embedding(tokens), []
        for block, state in zip(self.blocks, self.before(states), strict=True):
            x, state = self.run(block, x, state, cu_seqlens, mask)  # noqa: PLW2901
            after.append(state)
        return self.norm(x), after

    def run(
        self,
        block: nn.Module,
        x: Tensor,
        state: Any,
        cu_seqlens: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, Any]:
        """One block, computed twice if it is checkpointed."""
        if self.checkpointing and torch.is_grad_enabled():
            return checkpoint(
                block, x, state, cu_seqlens=cu_seqlens, mask=mask, use_reentrant=False
            )
        return block(x, state, cu_seqlens=cu_seqlens, mask=mask)

    def step(
        self, tokens_t: Integer[Tensor, " B"], states: States | None = None
    ) -> tuple[Float[Tensor, "B V"], States]:
        """Logits of one step of a batch, for decoding: the same time and memory at every step."""
        check_tokens("tokens_t", tokens_t, "(B)", self.embedding.num_embeddings)
        x_t, after = self.embedding(tokens_t), []
        for block, state in zip(self.blocks, self.before(states), strict=True):
            x_t, state = cast(LMBlock, block).step(x_t, state)  # noqa: PLW2901
            after.append(state)
        return self.head(self.norm(x_t)), after

    def before(self, states: States | None) -> States:
        """A state for each layer, None where a sequence begins."""
        if states is None:
            return [None] * len(self.blocks)
        if len(states) != len(self.blocks):
            raise ValueError(
                f"`states` must have one entry a layer: expected {len(self.blocks)}, got {len(states)}."
            )
        return states

    @property
    def state_size(self) -> int:
        """Numbers in the states of one sequence, however long it is."""
        return sum(cast(Mixer, cast(LMBlock, block).mixer).state_size for block in self.blocks)


def residual_outputs(block: LMBlock) -> list[nn.Linear]:
    """The projections of a block whose outputs are added to the residual stream."""
    ends = [getattr(block.mixer, name) for name in OUTPUTS if hasattr(block.mixer, name)]
    return [*ends, block.mlp.W_2]


def check_tokens(name: str, tokens: Tensor, axes: str, vocab: int) -> None:
    """Tokens are whole numbers below `vocab`; on a GPU, where reading them would wait for it, the embedding itself asserts that."""
    check_tensor(name, tokens)
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise TypeError(
            f"`{name}` must be whole numbers, got {tokens.dtype}. Convert with {name}.long()."
        )
    if tokens.dim() != axes.count(",") + 1:
        raise ValueError(
            f"`{name}` must have the axes {axes}, got the shape {tuple(tokens.shape)}."
        )
    if torch.compiler.is_compiling() or tokens.device.type != "cpu" or tokens.numel() == 0:
        return
    least, most = tokens.min().item(), tokens.max().item()
    if least < 0 or most >= vocab:
        wrong = least if least < 0 else most
        raise ValueError(
            f"A token id must be in 0 .. {vocab - 1}, the model's vocabulary, got {wrong}. "
            "Use the tokenizer that the model was trained with."
        )


def count_parameters(config: LMConfig) -> int:
    """Parameters of the model that `config` describes, counted without allocating them."""
    with torch.device("meta"):
        model = LanguageModel(config)
    return sum(p.numel() for p in model.parameters())
