"""How a scan is laid out on a GPU: a plain function of its sizes.

One warp sweeps a tile of lanes through a sequence, reading a few steps ahead; where there are too few warps to keep the processors busy,
sequences are cut into chunks.  The numbers rest on counts of bytes and instructions (docs/gpu.md), not on measurements.
"""

import math
from dataclasses import dataclass

from statemix.kernels.calls import Recurrence

__all__ = ["MAX_SIZE", "SHORTEST", "SUPPORTED_GATES", "Plan", "make_plan", "next_power_of_2"]

# The gate functions in `kernels/gpu/gates.py`; None for scans of coefficients.
SUPPORTED_GATES = {None, "softmax", "sigmoid", "relu", "tanh", "linear", "silu", "none"}
MAX_SIZE = 64  # the largest m: a row of gates stays in a lane's registers
FLIGHT = 12  # entries of rows that a lane reads at once, so that the warps of a processor cover the latency of memory
SHORTEST = 64  # steps of a chunk
BUSY = {
    1: 320,
    2: 250,
    4: 175,
    8: 150,
    16: 70,
}  # channels to a processor from which whole sequences are swept faster than chunks
HELD = 64  # entries of states that a lane holds in `summarise`


@dataclass(frozen=True)
class Plan:
    """Lanes of a tile, steps read at once, columns summarised together, and steps of a chunk; 0 means whole sequences."""

    lanes: int
    steps: int
    together: int
    chunk: int


def make_plan(
    S: int, T: int, n: int, m: int, *, recurrence: Recurrence, processors: int, warp: int
) -> Plan:
    """The plan for S sequences, the longest of T steps, of n blocks or channels of m states."""
    rows = recurrence.rows(m)
    lanes = max(warp, next_power_of_2(rows))
    steps = min(4, max(1, next_power_of_2(FLIGHT // (m + 1) + 1) // 2))
    together = min(m + 1, max(1, HELD * rows // m), 32)
    return Plan(lanes, steps, together, _chunk_length(S * n * rows, T, m, processors))


def _chunk_length(channels: int, T: int, m: int, processors: int) -> int:
    """About the square root of T, so that sweeping a chunk and joining the chunks take equally many steps."""
    busy = BUSY[min(16, next_power_of_2(m))]
    if T < 4 * SHORTEST or channels >= busy * processors:
        return 0
    return max(SHORTEST, next_power_of_2(math.isqrt(T - 1) + 1))


def next_power_of_2(x: int) -> int:
    """The smallest power of two that is at least x."""
    return 1 << max(0, x - 1).bit_length()
