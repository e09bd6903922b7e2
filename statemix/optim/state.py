"""The state of an optimiser by parameter name, as in checkpoints."""

import torch
from torch import Tensor, nn

from statemix.optim.groups import is_inner_matrix
from statemix.optim.muon import Muon

__all__ = ["load_moments", "named_moments"]


def named_moments(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Collect state tensors as `<kind>.<parameter>`, like `exp_avg.blocks.0.mixer.W_g.weight`."""
    return {
        f"{kind}.{name}": x
        for name, p in model.named_parameters()
        for kind, x in optimiser.state[p].items()
    }


def load_moments(
    model: nn.Module, optimiser: torch.optim.Optimizer, moments: dict[str, Tensor]
) -> None:
    """Restore what `named_moments` returned, or the numbered tensors of older checkpoints."""
    numbered = _numbered_names(model, isinstance(optimiser, Muon))
    parameters = dict(model.named_parameters())
    for key, x in moments.items():
        first, _, rest = key.partition(".")
        name, kind = (numbered[int(first)], rest) if first.isdigit() else (rest, first)
        optimiser.state[parameters[name]][kind] = x


def _numbered_names(model: nn.Module, with_muon: bool) -> list[str]:
    """List parameter names in the order of older checkpoints: the matrices of Muon come first."""
    named = list(model.named_parameters())
    inner = [name for name, p in named if with_muon and is_inner_matrix(name, p)]
    return inner + [name for name, _ in named if name not in inner]
