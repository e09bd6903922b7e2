"""Where a program works, and the states it holds: the vocabulary of the sweeps.

A program is one warp.  It has a tile of lanes and a chunk of one sequence's steps, i0 .. i1, counted in the order of the scan.

    block       a lane is a row of a block, PAD = the next power of two lanes to a block; a state is one vector
    companion   a lane is a channel; a state is a tuple of m vectors, newest first

ROWS is m or 1, the rows of gates of a block or channel.  All tensors are contiguous, in the shapes of the public scans.
"""

import triton
import triton.language as tl

MAX_ROUNDS: tl.constexpr = tl.constexpr(8)  # of `transposed_sum`, enough for blocks of 256


@triton.jit
def place(tile, n, M: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr):
    """This tile's lanes: the row and block of each, and whether there is such a row.

    Lanes without a row of their own read another's, and write nothing.
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
    """Chunk k: its sequence s, that sequence's start and length, the chunk's number in it, its steps i0 .. i1, and whether it is the last.

    Without chunks, k is the sequence itself.  `owner` and `first` tell, for packed sequences, which sequence each chunk belongs to and
    which chunk each sequence begins with; chunks beyond the last have no steps.
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
    """The position on the flattened axis of time of a scan's step 0, and how far it is to the next."""
    one = start * 0 + 1
    return (start + steps - 1, -one) if REVERSE else (start, one)


@triton.jit
def load_row(p, COLUMNS: tl.constexpr):
    """A row, in float32."""
    g = ()
    for j in tl.static_range(COLUMNS):
        g += (tl.load(p + j).to(tl.float32),)
    return g


@triton.jit
def load_state(p, s, n, block, own, M: tl.constexpr, BLOCK: tl.constexpr):
    """The state numbered s of a tensor (.., n, M), zero if there is no tensor; `own` is the row of each lane."""
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
    """The inverse of `load_state`."""
    for i in tl.static_range(1 if BLOCK else M):
        tl.store(
            p + s.to(tl.int64) * n * M + block * M + (own if BLOCK else i), state[i], mask=valid
        )


@triton.jit
def entry_of(state, j: tl.constexpr, home, M: tl.constexpr, BLOCK: tl.constexpr):
    """Entry j of the state, in every lane that the state belongs to; `home` is the first of these lanes."""
    return tl.gather(state[0], home + j, 0) if BLOCK and M > 1 else state[j]


@triton.jit
def push(state, y, BLOCK: tl.constexpr):
    """The state after an output y."""
    return (y,) if BLOCK else (y,) + state[: len(state) - 1]


@triton.jit
def choose(real, new, old):
    """The tuple `new` where a step is real, `old` where it is masked."""
    chosen = ()
    for i in tl.static_range(len(new)):
        chosen += (tl.where(real, new[i], old[i]),)
    return chosen


@triton.jit
def transposed_sum(p, lane, row, valid):
    """Σ_i p_j of lane i, in lane j: the sum of a block's rows, one column to each lane.

    Each round, lanes whose rows differ in one bit exchange halves of their columns and add what they keep: PAD − 1 shuffles in all.
    """
    PAD: tl.constexpr = triton.next_power_of_2(len(p))
    if len(p) < PAD:  # lanes that fill up a block read what is not theirs
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
