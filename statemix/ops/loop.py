"""The plain loop over time, which every scan falls back on: any device and dtype, linear in T.

Registered ops run it below autograd, so no graph grows with T. The loop has no in-place operations,
so it also supports forward-mode differentiation and the transforms of torch.func.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, repeat

import torch
from torch import Tensor

from statemix.ops.segments import Sequences, checked_bounds

__all__ = ["run_loop"]

Step = Callable[..., tuple[Tensor, Tensor]]


def run_loop(
    step: Step, inputs: Sequence[Tensor], state: Tensor, like: Tensor, sequences: Sequences
) -> tuple[Tensor, Tensor]:
    """Compute `state, y[t] = step(state, *inputs[:, t], mask[:, t])` over each sequence.

    Return y, which has the shape of `like`, and the final states.
    """
    cu_seqlens, mask, reverse = sequences
    T = like.shape[1]
    bounds = [0, T] if cu_seqlens is None else checked_bounds(cu_seqlens, T)
    states = (state,) if cu_seqlens is None else state.unsqueeze(1).unbind()
    outputs: list[Tensor] = []
    finals = [state[:0]]
    for (start, stop), initial in zip(pairwise(bounds), states, strict=True):
        part = [None if x is None else x[:, start:stop] for x in (*inputs, mask)]
        y, final = _run_one(step, part, initial, stop - start, reverse)
        outputs += y
        finals.append(final)
    h = torch.stack(outputs, 1) if outputs else torch.zeros_like(like, dtype=state.dtype)
    return h, torch.cat(finals)


def _run_one(
    step: Step, inputs: Sequence[Tensor | None], state: Tensor, T: int, reverse: bool
) -> tuple[list[Tensor], Tensor]:
    columns = [repeat(None, T) if x is None else x.unbind(1) for x in inputs]
    steps = list(zip(*columns, strict=True))
    outputs = []
    for inputs_t in reversed(steps) if reverse else steps:
        state, y = step(state, *inputs_t)
        outputs.append(y)
    return outputs[::-1] if reverse else outputs, state
