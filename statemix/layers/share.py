"""Sequences that several ranks share: which layers can, and telling them."""

from torch import nn
from torch.distributed import ProcessGroup

from statemix.layers.mixer import MIXERS
from statemix.layers.unit import LinearRecurrentUnit


def share_sequences(model: nn.Module, group: ProcessGroup) -> None:
    """Let every BD-LRU and H-LRU in `model` treat its input as this rank's part of sequences that all of `group` hold together.

    Parts are those of `statemix.ops.context.own_part`; states and `cu_seqlens` are the whole sequences'.  Weights are as before, and
    each rank's gradient of them is its share: sum over the group.
    """
    shared = [module for module in model.modules() if isinstance(module, LinearRecurrentUnit)]
    if not shared:
        raise ValueError(
            f"{type(model).__name__} has no BD-LRU or H-LRU layer, whose sequences ranks can share."
        )
    for module in model.modules():
        if type(module) in MIXERS.values() and not isinstance(module, LinearRecurrentUnit):
            raise ValueError(
                f"Ranks can share the sequences of BD-LRU and H-LRU layers, not those of {type(module).__name__}."
            )
    for layer in shared:
        if layer.save_memory:
            raise ValueError(
                "A layer with `save_memory` cannot share sequences between ranks. Build it without, or use checkpointing."
            )
        layer.context = group
