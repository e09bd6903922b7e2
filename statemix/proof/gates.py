"""Moving near ties of gates apart.

The raw gates of a row are W_g x + c, and the chosen one leads by raw[chosen] − raw[next]. Gradient
descent on

    Σ max(0, δ − lead)²        over all inputs x that the layer can meet and all rows

changes W_g along those inputs where two gates are close, until all leads are large enough. No
choice changes. A multiple of W_g and c has leads as large as one likes, so there is a solution.
"""

import copy
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from statemix.layers import BDLRU
from statemix.models import Tagger
from statemix.proof.blocks import mixers_of
from statemix.proof.step import initial_states, step
from statemix.proof.walk import Walk
from statemix.tasks.automaton import Automaton

__all__ = ["LEAD", "move_apart", "move_gates_apart"]

LEAD = 0.05  # distance to which near ties of a first layer are moved apart
_BEYOND = 1.25  # of that distance is aimed at
_STEPS = 2000
_LR = 3e-3


def move_gates_apart(
    model: Tagger, found: Walk, automaton: Automaton, lead: float = LEAD
) -> Tagger:
    """A copy of a model in which each chosen gate leads by `lead` everywhere in a walk."""
    apart = copy.deepcopy(model)
    inputs = _inputs(apart, found, automaton)
    for mixer, x in zip(mixers_of(apart), inputs, strict=True):
        move_apart(mixer, x, lead)
    return apart


@torch.no_grad()
def _inputs(model: Tagger, found: Walk, automaton: Automaton) -> list[Float[Tensor, "R d"]]:
    """All different inputs of each layer's mixer in a walk, and at BOS."""
    layers: list[list[Tensor]] = [[] for _ in model.blocks]
    steps = [(letters, states) for _, letters, states in found.transitions(automaton)]
    if model.config.bos:
        steps.append((torch.tensor([model.embedding.num_embeddings - 1]), initial_states(model)))
    silent = [torch.zeros_like(h[0]) for h in initial_states(model)]
    for letters, states in steps:
        for inputs, x in zip(layers, step(model, letters, states, silent, 0.0).inputs, strict=True):
            inputs.append(x.unique(dim=0))
    return [torch.cat(inputs).unique(dim=0) for inputs in layers]


def move_apart(mixer: BDLRU, x: Float[Tensor, "R d"], margin: float) -> int:
    """Change W_g until each choice leads by `margin`; return how many did not before.

    Args:
        x: all inputs that the mixer can meet, as float64.
    """
    W_g = cast(nn.Linear, mixer.W_g)
    W = W_g.weight.detach().double().view(-1, mixer.gate_shape[-1], x.shape[1]).requires_grad_()
    c = W_g.bias.detach().double().view(-1, mixer.gate_shape[-1]).requires_grad_()
    chosen = _raw_gates(W, c, x).argmax(-1, keepdim=True)
    optimiser = torch.optim.Adam([W, c], lr=_LR)
    close = 0
    for number in range(_STEPS):
        lead = _lead(_raw_gates(W, c, x), chosen)
        if number == 0:
            close = int((lead < margin).sum())
        if lead.min() >= margin:
            break
        optimiser.zero_grad()
        (_BEYOND * margin - lead).clamp(min=0).square().sum().backward()
        optimiser.step()
    with torch.no_grad():
        W_g.weight.copy_(W.flatten(0, 1))
        W_g.bias.copy_(c.flatten())
    return close


def _raw_gates(
    W: Float[Tensor, "g c d"], c: Float[Tensor, "g c"], x: Float[Tensor, "R d"]
) -> Float[Tensor, "R g c"]:
    return torch.einsum("rd,gcd->rgc", x, W) + c


def _lead(raw: Float[Tensor, "R g c"], chosen: Int[Tensor, "R g 1"]) -> Float[Tensor, "R g"]:
    """The distance of the chosen gate to the next one."""
    following = raw.scatter(-1, chosen, -torch.inf).amax(-1, keepdim=True)
    return (raw.gather(-1, chosen) - following).squeeze(-1)
