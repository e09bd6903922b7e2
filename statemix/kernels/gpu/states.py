"""The lanes and time steps of a program, and the states that it holds; the sweeps build on both.

A program is one warp. It processes a tile of lanes and a chunk of one sequence, the steps i0 .. i1
in the order of the scan.

    block       a lane is a row; a block has PAD lanes, the next power of two; a state is one vector
    companion   a lane is a channel; a state is a tuple of m vectors, newest first

ROWS is the number of rows of gates in a block (m) or channel (1). All tensors are contiguous and
have the shapes of the public scans.
"""

import triton
import triton.language as tl

__all__ = [
    "choose",
    "enter",
    "entry_of",
    "load_row",
    "load_state",
    "locate",
    "place",
    "push",
    "store_state",
    "transposed_sum",
]

MAX_ROUNDS: tl.constexpr = tl.constexpr(8)  # of `transposed_sum`, enough for blocks of 256


@triton.jit
def place(tile, n, M: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """The lanes of a tile: the row and block of each, and True if the row exists.

    Lanes without a row read the row of another lane, and write nothing.
    """
    ROWS: tl.constexpr = M if BLOCK else 1
    PAD: tl.constexpr = triton.next_power_of_2(ROWS)
    lane = tl.arange(0, LANES)
    row = lane % PAD
    block = tile * (LANES // PAD) + lane // PAD
    valid = (block < n) & (row < ROWS)
    return lane, row, tl.minimum(block, n - 1), tl.minimum(row, ROWS - 1), valid


@triton.jit
def locate(k, cu, owner, first, T, length, per, CHUNKED: tl.constexpr):
    """Find chunk k: (s, start, steps, number, i0, i1, is_last).

    The chunk covers steps i0 .. i1 of sequence s, which has `steps` steps from position `start`,
    and is its chunk number `number`. Without chunks, k is the sequence. For packed sequences,
    `owner` is the sequence of each chunk and `first` the first chunk of each sequence; surplus
    chunks have no steps.
    """
    s = k
    if CHUNKED:
        s = tl.load(owner + k) if cu is not None else k // per
    start = s.to(tl.int64) * T
    steps = T
    if cu is not None:
        start = tl.load(cu + s).to(tl.int64)
        steps = (tl.load(cu + s + 1) - start).to(tl.int32)
    if CHUNKED:
        number = (k - tl.load(first + s)).to(tl.int32) if cu is not None else k % per
        i0 = tl.minimum(number * length, steps)
        i1 = tl.minimum(i0 + length, steps)
        return s, start, steps, number, i0, i1, number == tl.maximum(tl.cdiv(steps, length), 1) - 1
    else:
        return s, start, steps, s * 0, s * 0, s * 0 + steps, s == s


@triton.jit
def enter(start, steps, REVERSE: tl.constexpr):
    """The position of step 0 of a scan on the flattened time axis, and the offset to step 1."""
    one = start * 0 + 1
    return (start + steps - 1, -one) if REVERSE else (start, one)


@triton.jit
def load_row(p, COLUMNS: tl.constexpr):
    """Load a row in float32."""
    g = ()
    for j in tl.static_range(COLUMNS):
        g += (tl.load(p + j).to(tl.float32),)
    return g


@triton.jit
def load_state(p, s, n, block, own, M: tl.constexpr, BLOCK: tl.constexpr):
    """Load state s of a tensor (.., n, M), or zero without a tensor; `own` is each lane's row."""
    state = ()
    for i in tl.static_range(1 if BLOCK else M):
        if p is None:
            state += (tl.zeros(block.shape, tl.float32),)
        else:
            state += (
                tl.load(p + s.to(tl.int64) * n * M + block * M + (own if BLOCK else i)).to(
                    tl.float32
                ),
            )
    return state


@triton.jit
def store_state(p, s, state, n, block, own, valid, M: tl.constexpr, BLOCK: tl.constexpr):
    """Store state s of a tensor (.., n, M), the inverse of `load_state`."""
    for i in tl.static_range(1 if BLOCK else M):
        tl.store(
            p + s.to(tl.int64) * n * M + block * M + (own if BLOCK else i), state[i], mask=valid
        )


@triton.jit
def entry_of(state, j: tl.constexpr, home, M: tl.constexpr, BLOCK: tl.constexpr):
    """Entry j of a state, in all lanes of its block; `home` is the first of these lanes."""
    return tl.gather(state[0], home + j, 0) if BLOCK and M > 1 else state[j]


@triton.jit
def push(state, y, BLOCK: tl.constexpr):
    """The state after the output y."""
    return (y,) if BLOCK else (y,) + state[: len(state) - 1]


@triton.jit
def choose(real, new, old):
    """The state `new` at real steps, `old` at masked steps."""
    chosen = ()
    for i in tl.static_range(len(new)):
        chosen += (tl.where(real, new[i], old[i]),)
    return chosen


@triton.jit
def transposed_sum(p, lane, row, valid):
    """Sum p over the rows of a block: lane j gets the sum of p[j] over all lanes i of the block.

    In each round, lanes whose rows differ in one bit exchange half of their columns, and add the
    half that they keep. This takes PAD − 1 shuffles in total.
    """
    PAD: tl.constexpr = triton.next_power_of_2(len(p))
    if len(p) < PAD:  # padding lanes contain values of other rows
        own = ()
        for j in tl.static_range(len(p)):
            own += (tl.where(valid, p[j], tl.zeros_like(p[j])),)
        for _ in tl.static_range(PAD - len(p)):
            own += (tl.zeros_like(p[0]),)
        p = own
    for _ in tl.static_range(MAX_ROUNDS):
        if len(p) > 1:
            p = exchange(p, lane, row, len(p) // 2)
    return p[0]


@triton.jit
def exchange(p, lane, row, HALF: tl.constexpr):
    """One round: half as many columns, each summed over twice as many rows."""
    upper = (row & HALF) != 0
    kept = ()
    for j in tl.static_range(HALF):
        sent = tl.where(upper, p[j], p[j + HALF])
        kept += (tl.where(upper, p[j + HALF], p[j]) + tl.gather(sent, lane ^ HALF, 0),)
    return kept
