"""The plain loop over time that every scan falls back on: any device, any dtype, linear in T.

It runs inside registered ops, below autograd, so no graph grows with T and writing in place is safe.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise, repeat

from torch import Tensor

from statemix.ops.segments import Sequences, checked_bounds

Step = Callable[..., tuple[Tensor, Tensor]]


def run_loop(step: Step, inputs: Sequence[Tensor], state: Tensor, out: Tensor, sequences: Sequences) -> Tensor:
    """Run `state, out[:, t] = step(state, *inputs[:, t], mask[:, t])` through each sequence; return the final states."""
    cu_seqlens, mask, reverse = sequences
    everything = [*inputs, mask]
    if cu_seqlens is None:
        return _run_one(step, everything, state, out, reverse)
    final = state.clone()
    for i, (start, stop) in enumerate(pairwise(checked_bounds(cu_seqlens, out.shape[1]))):
        part = [None if x is None else x[:, start:stop] for x in everything]
        final[i : i + 1] = _run_one(step, part, state[i : i + 1], out[:, start:stop], reverse)
    return final


def _run_one(step: Step, inputs: Sequence[Tensor | None], state: Tensor, out: Tensor, reverse: bool) -> Tensor:
    T = out.shape[1]
    columns = [repeat(None, T) if x is None else x.unbind(1) for x in inputs]
    steps = list(zip(out.unbind(1), *columns, strict=True))
    for out_t, *inputs_t in reversed(steps) if reverse else steps:
        state, y = step(state, *inputs_t)
        out_t.copy_(y)
    return state
