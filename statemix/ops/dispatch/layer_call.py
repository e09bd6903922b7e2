"""One call of a recurrent layer, and the kernels that can compute it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statemix.kernels.calls import Recurrence, Weights
from statemix.ops.segments import Sequences

__all__ = [
    "LAYER_KERNELS",
    "Inputs",
    "LayerCall",
    "LayerKernel",
    "find_layer_kernel",
    "layer_call",
]


class Inputs(NamedTuple):
    """The inputs of a layer: x (B, T, d), or the rows `tokens` (B, T) of a table x (V, d)."""

    x: Tensor
    tokens: Tensor | None = None

    @property
    def steps(self) -> Tensor:
        """A tensor whose first two axes are B and T."""
        return self.x if self.tokens is None else self.tokens

    def at(self, steps: slice) -> "Inputs":
        """A chunk of time."""
        if self.tokens is None:
            return Inputs(self.x[:, steps])
        return Inputs(self.x, self.tokens[:, steps])

    def look_up(self, y: Tensor) -> Tensor:
        """A function y of x, at every step."""
        return y if self.tokens is None else F.embedding(self.tokens, y)


class LayerCall(NamedTuple):
    """One call of a layer."""

    inputs: Inputs
    weights: Weights
    h0: Tensor | None
    sequences: Sequences
    gate: str
    recurrence: Recurrence
    read_from: int = 0

    @property
    def output_shape(self) -> tuple[int, int, int]:
        """(B, T − read_from, d)."""
        B, T = self.inputs.steps.shape[:2]
        return B, T - self.read_from, self.weights.W_o.shape[0]

    @property
    def states_shape(self) -> tuple[int, int, int]:
        """(S, n, m)."""
        return self.sequences.count(self.inputs.steps), *self.weights.state_shape(self.recurrence)


def layer_call(
    x, tokens, W_g, c, W_v, W_o, h0, cu_seqlens, mask, gate, block, read_from
) -> LayerCall:
    """The call that the op's arguments describe."""
    return LayerCall(
        Inputs(x, tokens),
        Weights(W_g, c, W_v, W_o),
        h0,
        Sequences(cu_seqlens, mask),
        gate,
        Recurrence.BLOCK if block else Recurrence.COMPANION,
        read_from,
    )


@dataclass(frozen=True)
class LayerKernel:
    """A device's kernel for layers in float32 and bfloat16.

    The fields are its largest m, its gate functions, and the shapes of the tensors that it saves
    for the backward pass.
    """

    max_size: int
    gates: frozenset[str]
    saved_shapes: Callable[[LayerCall, bool], tuple[tuple[int, ...], ...]]


KERNEL_DTYPES = {torch.float32, torch.bfloat16}
LAYER_KERNELS: dict[str, LayerKernel] = {}


def find_layer_kernel(call: LayerCall) -> LayerKernel | None:
    """The kernel that computes this layer, None if there is none."""
    x = call.inputs.x
    kernel = LAYER_KERNELS.get(x.device.type)
    if kernel is None or not {x.dtype, *(w.dtype for w in call.weights)} <= KERNEL_DTYPES:
        return None
    return kernel if call.weights.m <= kernel.max_size and call.gate in kernel.gates else None
