"""Eigenvalues of the transitions that a trained model applies to the sequences of its task."""

import numpy as np
import torch
from torch import Tensor, nn

from statemix.analysis.spectrum import eigenvalues, transitions
from statemix.layers import BDLRU, HLRU
from statemix.models import Tagger
from statemix.tasks import Task

__all__ = ["collect_eigenvalues"]


@torch.no_grad()
def collect_eigenvalues(model: nn.Module, task: Task, length: int, count: int = 64) -> list[Tensor]:
    """Eigenvalues (B, T, n, m) of each BD-LRU and H-LRU of a tagger, on `count` new sequences.

    The list is empty if the model has no such layer.
    """
    if not isinstance(model, Tagger):
        return []
    found: list[Tensor] = []
    handles = [
        block.mixer.register_forward_pre_hook(
            lambda mixer, arguments: found.append(eigenvalues(transitions(mixer, arguments[0])))
        )
        for block in model.blocks
        if isinstance(block.mixer, BDLRU | HLRU)
    ]
    tokens = torch.from_numpy(task.examples(count, length, np.random.default_rng(0)).inputs)
    model(tokens)
    for handle in handles:
        handle.remove()
    return found
