"""What the letters do to the slots of each block: which slot copies which, or loads a value."""

from collections import Counter
from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.blocks import live_blocks, mixers_of
from statemix.proof.step import initial_states, step
from statemix.proof.walk import walk
from statemix.tasks.automaton import Automaton

__all__ = ["Moves", "group_of", "moves_above", "sources"]

Moves = tuple[int, ...]  # which slot each slot copies, or m if it loads a value
_PAIRS = 200_000  # to walk through
_GROUP = 5040  # larger groups are not counted


@torch.no_grad()
def sources(model: Tagger) -> Int[Tensor, "V n m"]:
    """Which slot 0 .. m − 1 each slot copies when a token is read, or m if it loads a value."""
    mixer = mixers_of(model)[0]
    norm = cast(Block, model.blocks[0]).mixer_norm
    x = nn.functional.layer_norm(
        model.embedding.weight.double(),
        norm.normalized_shape,
        norm.weight.double(),
        norm.bias.double(),
        norm.eps,
    )
    W_g = cast(nn.Linear, mixer.W_g)
    raw = x @ W_g.weight.double().T + W_g.bias.double()
    return raw.unflatten(1, mixer.gate_shape).argmax(-1)


@torch.no_grad()
def moves_above(
    model: Tagger, automaton: Automaton
) -> dict[tuple[int, int], dict[Moves, Counter[int]]]:
    """For each layer above the first and block: its moves, and how often each letter makes them."""
    silent = [torch.zeros_like(h[0]) for h in initial_states(model)]
    found: dict[tuple[int, int], dict[Moves, Counter[int]]] = {}
    for _, letters, states in walk(model, automaton, _PAIRS).transitions(automaton):
        inputs = step(model, letters, states, silent, 0.0).inputs
        for layer, mixer in enumerate(mixers_of(model)[1:], 1):
            W_g = cast(nn.Linear, mixer.W_g)
            raw = inputs[layer] @ W_g.weight.double().T + W_g.bias.double()
            chosen = raw.unflatten(1, mixer.gate_shape).argmax(-1)
            for block in live_blocks(mixer).nonzero()[:, 0].tolist():
                own = found.setdefault((layer, block), {})
                for letter, move in zip(letters.tolist(), chosen[:, block].tolist(), strict=True):
                    own.setdefault(tuple(move), Counter())[letter] += 1
    return found


def group_of(moves: Sequence[Moves]) -> str:
    """What the permutations among the moves generate, in words."""
    m = len(moves[0])
    permutations = [own for own in moves if sorted(own) == list(range(m))]
    group = {tuple(range(m))}
    fresh = list(group)
    while fresh and len(group) <= _GROUP:
        products = {tuple(own[i] for i in p) for own in fresh for p in permutations}
        fresh = list(products - group)
        group |= products
    if len(permutations) < 2 or len(group) > _GROUP:
        return ""
    return f"{len(permutations)} are permutations, which generate a group of {len(group)}."
