"""Which blocks of a layer matter: those that carry a function of the task's state.

In one layer the gates depend on the letter alone, so each letter a acts on a block by a fixed map
T_a: some slots copy, others load. The block holds a function S of the state q of the task if

    S[step[q, a]] = T_a(S[q])        for every state q and every letter a that continues a word.

Blocks for which this holds are kept. The others only add noise to the readout, so they go.
"""

from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from statemix.layers import BDLRU
from statemix.models import Tagger
from statemix.models.tagger import Block
from statemix.proof.step import check_provable, initial_states, step
from statemix.tasks.automaton import NO_STEP, Automaton

__all__ = ["consistent_blocks", "keep_blocks", "live_blocks", "states_of"]


def mixers_of(model: Tagger) -> list[BDLRU]:
    """The mixers of all layers."""
    return [cast(BDLRU, cast(Block, block).mixer) for block in model.blocks]


def live_blocks(mixer: BDLRU) -> Bool[Tensor, " n"]:
    """True for the blocks that the readout sees."""
    n, m = mixer.state_shape
    return mixer.W_o.weight.detach().view(-1, n, m).ne(0).any(2).any(0)


def states_of(model: Tagger, automaton: Automaton) -> Float[Tensor, "Q n m"]:
    """The state of a one-layer model after the first word that leads to each state q."""
    h = _after_bos(model)
    found = torch.zeros(automaton.states, *h.shape, dtype=h.dtype)
    found[automaton.start] = h
    for q, letter, target in _tree(automaton):
        found[target] = _act(model, torch.tensor([letter]), found[q : q + 1])[0]
    return found


def consistent_blocks(model: Tagger, automaton: Automaton) -> Bool[Tensor, " n"]:
    """True for the blocks of a one-layer model whose state is a function of the task's state."""
    check_provable(model)
    if len(model.blocks) != 1:
        raise ValueError(
            f"Blocks are functions of the letter in one layer only, got {len(model.blocks)} layers."
        )
    found = states_of(model, automaton)
    consistent = torch.ones(found.shape[1], dtype=torch.bool)
    reached = torch.zeros(automaton.states, dtype=torch.bool)
    reached[[automaton.start, *(target for _, _, target in _tree(automaton))]] = True
    for letter in range(automaton.letters):
        goes = torch.from_numpy(automaton.step[:, letter] != NO_STEP) & reached
        if not goes.any():
            continue
        targets = torch.from_numpy(automaton.step[:, letter])[goes]
        after = _act(model, torch.full((int(goes.sum()),), letter), found[goes])
        consistent &= (after == found[targets]).all(2).all(0)
    return consistent


def keep_blocks(mixer: BDLRU, kept: Bool[Tensor, " n"] | Int[Tensor, " k"]) -> BDLRU:
    """A layer with these blocks of `mixer` only."""
    n, m = mixer.state_shape
    index = kept.nonzero().squeeze(1) if kept.dtype == torch.bool else kept
    smaller = BDLRU(
        mixer.d_model,
        max(len(index), 1),
        m,
        gate=mixer.gate,
        learn_initial_state=mixer.h0 is not None,
        dtype=mixer.W_v.weight.dtype,
    )
    W_g = cast(nn.Linear, mixer.W_g)
    parts = {
        "W_g.weight": W_g.weight.view(n, m * (m + 1), -1)[index].flatten(0, 1),
        "W_g.bias": W_g.bias.view(n, m * (m + 1))[index].flatten(),
        "W_v.weight": mixer.W_v.weight.view(n, m, -1)[index].flatten(0, 1),
        "W_o.weight": mixer.W_o.weight.view(-1, n, m)[:, index].flatten(1),
    }
    if mixer.h0 is not None:
        parts["h0"] = mixer.h0[index]
    if len(index):
        smaller.load_state_dict({name: x.detach().clone() for name, x in parts.items()})
    else:
        _silence(smaller)
    return smaller


@torch.no_grad()
def _silence(mixer: BDLRU) -> None:
    """Let a layer load zeros at every step, and let the readout see none of them."""
    for weight in mixer.parameters():
        weight.zero_()
    cast(nn.Linear, mixer.W_g).bias.view(mixer.gate_shape)[..., -1] = 1.0


def _after_bos(model: Tagger) -> Float[Tensor, "n m"]:
    """The state before the first letter of a word."""
    h = initial_states(model)[0]
    if model.config.bos:
        h = _act(model, torch.tensor([model.embedding.num_embeddings - 1]), h)
    return h[0]


def _act(
    model: Tagger, letters: Int[Tensor, " S"], h: Float[Tensor, "S n m"]
) -> Float[Tensor, "S n m"]:
    """The states of the first layer after each letter."""
    return step(model, letters, [h], [torch.zeros_like(h[0])], 0.0).states[0]


def _tree(automaton: Automaton) -> list[tuple[int, int, int]]:
    """Transitions (q, letter, target) that reach every state once, breadth first."""
    edges = []
    seen = {automaton.start}
    queue = [automaton.start]
    for q in queue:
        for letter, target in enumerate(automaton.step[q].tolist()):
            if target != NO_STEP and target not in seen:
                seen.add(target)
                queue.append(target)
                edges.append((q, letter, target))
    return edges
