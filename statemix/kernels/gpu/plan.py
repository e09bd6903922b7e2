"""The plan of a scan on a GPU, as a function of its sizes.

One warp processes a tile of lanes along a sequence and reads a few steps ahead. If there are too
few warps to occupy the multiprocessors, sequences are split into chunks. The constants are derived
from byte and instruction counts (docs/explanation/gpu-estimates.md), not from measurements.
"""

import math
from dataclasses import dataclass

from statemix.kernels.calls import Recurrence

__all__ = ["MAX_SIZE", "SHORTEST", "SUPPORTED_GATES", "Plan", "make_plan", "next_power_of_2"]

# The gate functions in `kernels/gpu/gates.py`; None for scans of coefficients.
SUPPORTED_GATES = {None, "softmax", "hardmax", "sigmoid", "relu", "tanh", "linear", "silu", "none"}
# The largest m: with larger ones, kernels spill registers, or take many minutes to compile.
MAX_SIZE = {Recurrence.BLOCK: 32, Recurrence.COMPANION: 16}
FLIGHT = 12  # row entries that a lane reads at once, so that the warps hide the memory latency
SHORTEST = 64  # the minimum number of steps in a chunk
# Channels per multiprocessor, for each m, from which full sequences are faster than chunks.
BUSY = {1: 320, 2: 250, 4: 175, 8: 150, 16: 70}
HELD = 64  # state entries that a lane holds in `summarise`


@dataclass(frozen=True)
class Plan:
    """The launch parameters of a scan.

    lanes: lanes per tile.
    steps: time steps that are read at once.
    together: columns that one program of `summarise` computes.
    chunk: time steps per chunk (0: full sequences).
    """

    lanes: int
    steps: int
    together: int
    chunk: int


def make_plan(
    S: int, T: int, n: int, m: int, *, recurrence: Recurrence, processors: int, warp: int
) -> Plan:
    """The plan for S sequences of at most T steps, with n blocks or channels of m states."""
    rows = recurrence.rows(m)
    lanes = max(warp, next_power_of_2(rows))
    steps = min(4, max(1, next_power_of_2(FLIGHT // (m + 1) + 1) // 2))
    together = min(m + 1, max(1, HELD * rows // m), 32)
    return Plan(lanes, steps, together, _chunk_length(S * n * rows, T, m, processors))


def _chunk_length(channels: int, T: int, m: int, processors: int) -> int:
    """About √T, so that processing a chunk and joining the chunks take equally many steps."""
    busy = BUSY[min(16, next_power_of_2(m))]
    if T < 4 * SHORTEST or channels >= busy * processors:
        return 0
    return max(SHORTEST, next_power_of_2(math.isqrt(T - 1) + 1))


def next_power_of_2(x: int) -> int:
    """The smallest power of two that is at least x."""
    return 1 << max(0, x - 1).bit_length()
