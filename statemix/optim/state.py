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
        is_number = first.isdecimal() and int(first) < len(numbered)
        name, kind = (numbered[int(first)], rest) if is_number else (rest, first)
        if name not in parameters:
            raise ValueError(f"the optimiser has a moment {key!r} of no parameter")
        p = parameters[name]
        if kind == "step":
            _check(key, x, (), torch.float32)
        else:
            _check(key, x, tuple(p.shape), p.dtype)
        optimiser.state[p][kind] = x
    _check_complete(optimiser)


def _check(key: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise an error unless a moment has this shape and dtype, and finite numbers."""
    if tuple(x.shape) != shape or x.dtype != dtype:
        raise ValueError(
            f"the moment `{key}` must be {dtype} of the shape {shape}, "
            f"got {x.dtype} of the shape {tuple(x.shape)}"
        )
    if not x.isfinite().all():
        raise ValueError(f"the moment `{key}` has numbers that are infinite or NaN")


def _check_complete(optimiser: torch.optim.Optimizer) -> None:
    """Raise an error unless the parameters of each group have the same kinds of moments."""
    for group in optimiser.param_groups:
        # A parameter that has had no gradient has no moments.
        kinds = {frozenset(optimiser.state[p]) for p in group["params"]} - {frozenset()}
        if len(kinds) > 1:
            raise ValueError("the optimiser lacks moments of some parameters")


def _numbered_names(model: nn.Module, with_muon: bool) -> list[str]:
    """List parameter names in the order of older checkpoints: the matrices of Muon come first."""
    named = list(model.named_parameters())
    inner = [name for name, p in named if with_muon and is_inner_matrix(name, p)]
    return inner + [name for name, _ in named if name not in inner]
