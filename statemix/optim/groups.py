"""Which parameters decay, and which are updated by Muon."""

from typing import Any

from torch import nn

__all__ = ["decays", "is_inner_matrix", "parameter_groups"]

_WITHOUT_DECAY = ("bias", "h0")


def decays(name: str, p: nn.Parameter) -> bool:
    """True for matrices; vectors, biases of any shape, and initial states have no weight decay."""
    return p.ndim >= 2 and not name.rpartition(".")[2].startswith(_WITHOUT_DECAY)


def is_inner_matrix(name: str, p: nn.Parameter) -> bool:
    """True for the matrices inside blocks and decoders; embedding and head are not among them."""
    return p.ndim == 2 and decays(name, p) and ("blocks." in name or "decoder." in name)


def parameter_groups(
    model: nn.Module, weight_decay: float, *, inner: bool = False
) -> list[dict[str, Any]]:
    """Group parameters by weight decay; with `inner`, inner matrices are a separate first group."""
    groups: list[dict[str, Any]] = [
        {"params": [], "weight_decay": weight_decay, "matrices": True},
        {"params": [], "weight_decay": weight_decay, "matrices": False},
        {"params": [], "weight_decay": 0.0, "matrices": False},
    ]
    for name, p in model.named_parameters():
        decayed = 1 if decays(name, p) else 2
        groups[0 if inner and is_inner_matrix(name, p) else decayed]["params"].append(p)
    return [group for group in groups if group["params"]]
