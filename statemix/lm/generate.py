"""Generate text from a language model, one token at a time in constant time and memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from statemix.models.lm import LanguageModel, States

__all__ = ["Sampling", "choose", "generate_tokens"]

_PREFILL = 1024  # tokens of the prompt per forward pass
_COLDEST = 1e-8  # lower temperatures count as zero


@dataclass(frozen=True)
class Sampling:
    """How to sample a token from the model's distribution.

    Args:
        temperature: 0 takes the most likely token; below 1 sharpens the distribution, above 1
            flattens it.
        top_k: sample from the k most likely tokens (0: all).
        top_p: sample from the most likely tokens whose probabilities add up to this.
        seed: seed of the random numbers.
    """

    temperature: float = 0.8
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise ValueError(
                f"`temperature` must be finite and not negative, got {self.temperature}."
            )
        if self.top_k < 0:
            raise ValueError(f"`top_k` must not be negative, got {self.top_k}.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p` must be above 0 and at most 1, got {self.top_p}.")


def choose(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Sample tokens (B,) from logits (B, V)."""
    if sampling.temperature < _COLDEST:
        return logits.argmax(-1)
    logits = logits.float() / sampling.temperature
    if sampling.top_k:
        least = logits.topk(min(sampling.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    p, order = logits.softmax(-1).sort(-1, descending=True)
    before = p.cumsum(-1) - p
    before[:, 0] = -1.0  # the most likely token stays, however small `top_p` is
    p = p.masked_fill(before >= sampling.top_p, 0.0)
    return order.gather(-1, torch.multinomial(p, 1, generator=generator)).squeeze(-1)


@torch.inference_mode()
def _read_prompt(model: LanguageModel, prompt: Tensor) -> tuple[Tensor, States]:
    """Logits (1, V) and states after a prompt (T,), read in chunks."""
    if prompt.numel() == 0:
        raise ValueError(
            "A prompt must have at least one token. "
            "Start it with the tokenizer's end-of-text token, or with a word."
        )
    states: States | None = None
    for chunk in prompt.unsqueeze(0).split(_PREFILL, 1):
        x, states = model.features(chunk, states)
    return model.head(x[:, -1]), states or []


@torch.inference_mode()
def generate_tokens(
    model: LanguageModel, prompt: Tensor, tokens: int, sampling: Sampling, stop: int | None = None
) -> Iterator[int]:
    """Yield up to `tokens` tokens that continue `prompt` (T,), ending before the token `stop`."""
    generator = torch.Generator(prompt.device).manual_seed(sampling.seed)
    logits, states = _read_prompt(model, prompt)
    for _ in range(tokens):
        token = choose(logits, sampling, generator)
        if token.item() == stop:
            return
        yield int(token)
        logits, states = model.step(token, states)
