"""The plain loop over time that every scan falls back on: any device, any dtype, linear in T.

Registered ops run it below autograd, where no graph grows with T.  It writes nothing in place, so that forward-mode
differentiation and the transforms of torch.func can go through it too.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, repeat

import torch
from torch import Tensor

from statemix.ops.segments import Sequences, checked_bounds

Step = Callable[..., tuple[Tensor, Tensor]]


def run_loop(
    step: Step, inputs: Sequence[Tensor], state: Tensor, like: Tensor, sequences: Sequences
) -> tuple[Tensor, Tensor]:
    """Run `state, y[t] = step(state, *inputs[:, t], mask[:, t])` through each sequence.

    Returns y, of the shape of `like`, and the final states.
    """
    cu_seqlens, mask, reverse = sequences
    everything = [*inputs, mask]
    if cu_seqlens is None:
        y, final = _run_one(step, everything, state, like.shape[1], reverse)
        return (torch.stack(y, 1) if y else torch.zeros_like(like, dtype=state.dtype)), final
    outputs: list[Tensor] = []
    finals: list[Tensor] = [state[:0]]
    for i, (start, stop) in enumerate(pairwise(checked_bounds(cu_seqlens, like.shape[1]))):
        part = [None if x is None else x[:, start:stop] for x in everything]
        y, final = _run_one(step, part, state[i : i + 1], stop - start, reverse)
        outputs += y
        finals.append(final)
    return (
        torch.stack(outputs, 1) if outputs else torch.zeros_like(like, dtype=state.dtype)
    ), torch.cat(finals)


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
