"""Context parallelism: layers whose sequences are split across ranks."""

from torch import nn
from torch.distributed import ProcessGroup

from statemix.layers.mixer import MIXERS
from statemix.layers.unit import LinearRecurrentUnit
from statemix.layers.wrappers import OutputGate

__all__ = ["share_sequences"]


def share_sequences(model: nn.Module, group: ProcessGroup) -> None:
    """Split the sequences of every BD-LRU and H-LRU in `model` across the ranks of `group`.

    The input of a layer is then this rank's steps, which `statemix.ops.context.own_part` selects.
    States and `cu_seqlens` are those of the full sequences. The weights are unchanged, and their
    gradients must be summed over `group`.
    """
    shared = [module for module in model.modules() if isinstance(module, LinearRecurrentUnit)]
    if not shared:
        raise ValueError(
            f"{type(model).__name__} has no BD-LRU or H-LRU layer that could split sequences."
        )
    for module in model.modules():
        can_split = isinstance(module, LinearRecurrentUnit | OutputGate)
        if type(module) in MIXERS.values() and not can_split:
            raise ValueError(
                "Only BD-LRU and H-LRU layers can split sequences across ranks (context "
                f"parallelism), got {type(module).__name__}. Train this model without `context`."
            )
    for layer in shared:
        if layer.save_memory:
            raise ValueError(
                "A layer with `save_memory` cannot split sequences across ranks. "
                "Build it without `save_memory`, or use checkpointing."
            )
        layer.context = group
