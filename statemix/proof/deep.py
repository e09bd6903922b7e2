"""From a trained model of several layers to one whose walk closes.

A layer above the first loads values that depend on the states below it, so the walk through the
product may not close: there are too many values that it can meet. Three steps make it small:

1. remove blocks, those with the smallest columns of W_o first, while all answers stay right
2. remove further blocks, with some training after each
3. shut the input gates of the upper layers, so that they only permute and copy what BOS has loaded,
   which becomes their initial state
4. train on the words that a walk finds to be wrong, and move near ties of gates apart
"""

import copy
from collections.abc import Callable, Iterator
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import nn

from statemix.layers import BDLRU
from statemix.models import ModelConfig, Tagger
from statemix.models.tagger import Block
from statemix.proof.blocks import live_blocks, mixers_of
from statemix.proof.certificate import compact
from statemix.proof.gates import move_gates_apart
from statemix.proof.mistakes import train_on_mistakes
from statemix.proof.step import initial_states, step
from statemix.proof.walk import walk
from statemix.proof.words import answers_all, random_words
from statemix.tasks.automaton import Automaton

__all__ = ["deep_candidates", "fold_bos", "remove_blocks", "remove_with_training", "shut_inputs"]

_WORDS = 128  # to check the answers on
_LENGTH = 65
_BATCH = 64  # words in a step of training
_CHECK = 20  # steps between two checks
_SHUT = -100.0  # raw input gate of a slot that never loads

_PAIRS = 200_000  # to visit before giving up
_LEADS = (0.05, 0.2, 0.5, 1.0)  # rounding errors of the layers below can be large
_STEPS = 160  # of training after a block is removed
_LR = 3e-3


def deep_candidates(
    model: Tagger, automaton: Automaton, observe: Callable[[str], None]
) -> Iterator[tuple[Tagger, Literal["retrained"]]]:
    """A small copy of a model with several layers that is right wherever a walk could see."""
    observe("removing blocks")
    small = remove_blocks(model, automaton)
    small = remove_with_training(small, automaton, observe)
    small = shut_inputs(fold_bos(small))
    if train_on_mistakes(small, automaton, observe=observe):
        found = walk(small, automaton, _PAIRS)
        for lead in _LEADS:
            yield move_gates_apart(small, found, automaton, lead), "retrained"


def columns(model: Tagger) -> list[tuple[float, int, int]]:
    """The norm of each live block's columns of W_o, smallest first, with its layer and index."""
    found = []
    for layer, mixer in enumerate(mixers_of(model)):
        n, m = mixer.state_shape
        norms = mixer.W_o.weight.detach().view(-1, n, m).norm(dim=(0, 2))
        found += [(norms[i].item(), layer, i) for i in live_blocks(mixer).nonzero()[:, 0].tolist()]
    return sorted(found)


@torch.no_grad()
def silence(model: Tagger, layer: int, block: int) -> Tagger:
    """A copy of the model in which nothing sees this block."""
    smaller = copy.deepcopy(model)
    mixer = mixers_of(smaller)[layer]
    n, m = mixer.state_shape
    mixer.W_o.weight.view(-1, n, m)[:, block] = 0.0
    return smaller


def remove_blocks(model: Tagger, automaton: Automaton) -> Tagger:
    """Remove blocks one after the other while the answers to random words stay right."""
    words = random_words(automaton, _WORDS, _LENGTH, [0])
    for _, layer, block in columns(model):
        smaller = silence(model, layer, block)
        if answers_all(smaller, *words):
            model = smaller
    return compact(model)


def remove_with_training(
    model: Tagger, automaton: Automaton, observe: Callable[[str], None] = lambda _: None
) -> Tagger:
    """Remove further blocks if up to 160 steps of training make all answers right again."""
    tried = 0
    while tried < len(columns(model)):
        _, layer, block = columns(model)[tried]
        smaller = compact(silence(model, layer, block))
        observe(f"removing blocks with training, {len(columns(model))} left")
        if _train_further(smaller, automaton, _STEPS):
            model = smaller
            tried = 0
        else:
            tried += 1
    return model


def _train_further(model: Tagger, automaton: Automaton, steps: int) -> bool:
    """Train in place until the answers to random words are right; False if they do not get so."""
    words = random_words(automaton, _WORDS, _LENGTH, [0])
    optimiser = torch.optim.AdamW(model.parameters(), lr=_LR, weight_decay=0.0)
    for number in range(steps):
        if number % _CHECK == 0 and answers_all(model, *words):
            return True
        inputs, targets = random_words(automaton, _BATCH, _LENGTH, [1, number])
        loss = F.cross_entropy(model(inputs)[0].flatten(0, 1), targets.flatten())
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return answers_all(model, *words)


@torch.no_grad()
def fold_bos(model: Tagger) -> Tagger:
    """The same function without BOS: the states after it become learned initial states."""
    states = initial_states(model)
    if model.config.bos:
        bos = torch.tensor([model.embedding.num_embeddings - 1])
        states = step(model, bos, states, [torch.zeros_like(h[0]) for h in states], 0.0).states
    vocab = model.embedding.num_embeddings - model.config.bos
    config = ModelConfig(
        width=model.config.width, layers=len(model.blocks), channel_mixer="none", bos=False
    )
    folded = Tagger(config, vocab, model.head.out_features)
    tensors = {name: x.clone() for name, x in model.state_dict().items()}
    tensors["embedding.weight"] = tensors["embedding.weight"][:vocab]
    for i, (block, mixer, h) in enumerate(
        zip(folded.blocks, mixers_of(model), states, strict=True)
    ):
        n, m = mixer.state_shape
        cast(Block, block).mixer = BDLRU(
            mixer.d_model, n, m, gate=mixer.gate, learn_initial_state=True
        )
        tensors[f"blocks.{i}.mixer.h0"] = h[0].float()
    folded.load_state_dict(tensors)
    return folded.eval()


@torch.no_grad()
def shut_inputs(model: Tagger) -> Tagger:
    """A copy of a model without BOS whose upper layers never load."""
    shut = copy.deepcopy(model)
    for mixer in mixers_of(shut)[1:]:
        W_g = cast(nn.Linear, mixer.W_g)
        W_g.weight.view(*mixer.gate_shape, -1)[:, :, -1] = 0.0
        W_g.bias.view(mixer.gate_shape)[:, :, -1] = _SHUT
        mixer.W_v.weight.zero_()
    return shut
