"""The sweeps over time: forward and backward kernels of both recurrences.

    forward     y[t] = Σ_j w_j[t] u_j[t] + a[t] v[t],    u the state before step t
    backward    λ[t] = dy[t] + k_1[t+1],    dg_j = slope_j λ (u_j − pull_j y) / Z,    dv = a λ
                block      k_j[t] = Σ_i w_ij λ_i
                companion  k_j[t] = w_j λ + k_{j+1}[t+1]
                hardmax    dg_j as for softmax, k and dv with its own weights

A sweep reads STEPS time steps before it computes them, and the remaining steps one by one. Both
passes compute the weights from the gates and never store them.

`summarise` and `join` allow the chunks of a sequence to be processed in parallel. A chunk maps its
initial state h to P h + e. `summarise` computes the columns of P from unit vectors, and e from
zero. The adjoint state k maps to Pᵀ k + e'.

Helpers receive pointers to each lane's entry at step 0 of the scan; `stride` is the offset between
consecutive steps.
"""

import triton
import triton.language as tl

from statemix.kernels.gpu.gates import numerators, one_hot, pull, slope, weights
from statemix.kernels.gpu.states import (
    choose,
    enter,
    entry_of,
    load_row,
    load_state,
    locate,
    place,
    push,
    store_state,
    transposed_sum,
)

__all__ = ["backward", "forward", "join", "summarise"]

SIZES = ["T", "length", "per", "n", "tiles"]
POINTERS = [
    "X", "x", "h0", "h", "final", "dh", "dfinal", "dX", "dx", "dh0", "lags", "ends", "entries",
    "mask", "cu", "owner", "first",
]  # fmt: skip


@triton.jit
def read(X, x, mask, i, stride, pace, COLUMNS: tl.constexpr):
    """Read the row and the driver of step i, and the mask (True at real steps)."""
    g = load_row(X + i * stride * COLUMNS, COLUMNS)
    v = tl.load(x + i * stride).to(tl.float32)
    real = v == v
    if mask is not None:
        real = tl.load(mask + i * pace) != 0
    return g, v, real


@triton.jit
def output(f, scale, v, state, home, M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr):
    """y = (Σ_j f_j u_j + f_m v) / Z; the input, often the largest term, is added last."""
    y = f[0] * entry_of(state, 0, home, M, BLOCK)
    for j in tl.static_range(1, M):
        y += f[j] * entry_of(state, j, home, M, BLOCK)
    return y + v if GATE is None else (y + f[M] * v) * scale


@triton.jit
def forward_steps(
    X, x, h, mask, state, i, stride, pace, valid, home,
    M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Run steps i .. i + STEPS − 1: read all of them, then compute one after the other."""
    COLUMNS: tl.constexpr = M if GATE is None else M + 1
    rows = ()
    for q in tl.static_range(STEPS):
        rows += (read(X, x, mask, i + q, stride, pace, COLUMNS),)
    for q in tl.static_range(STEPS):
        g, v, real = rows[q]
        f, scale = weights(g, GATE)
        new = push(state, output(f, scale, v, state, home, M, BLOCK, GATE), BLOCK)
        state = new if mask is None else choose(real, new, state)
        tl.store(h + (i + q) * stride, state[0], mask=valid)
    return state


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def forward(
    X, x, h0, h, final, mask, cu, owner, first, T, length, per, n, tiles,
    M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, REVERSE: tl.constexpr,
    CHUNKED: tl.constexpr, LANES: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute h and final. With chunks, h0 contains the initial state of each chunk."""
    ROWS: tl.constexpr = M if BLOCK else 1
    COLUMNS: tl.constexpr = M if GATE is None else M + 1
    k = tl.program_id(0) // tiles
    lane, row, block, own, valid = place(tl.program_id(0) % tiles, n, M, BLOCK, LANES)
    s, start, steps, _, i0, i1, last = locate(k, cu, owner, first, T, length, per, CHUNKED)
    begin, pace = enter(start, steps, REVERSE)
    at = begin * n * ROWS + (block * ROWS + own)
    X, x, h, stride = X + at * COLUMNS, x + at, h + at, pace * n * ROWS
    mask = mask if mask is None else mask + begin + lane * 0
    state = load_state(h0, k, n, block, own, M, BLOCK)
    many = i0
    if STEPS > 1:
        many += (i1 - i0) // STEPS * STEPS
        for i in range(i0, many, STEPS):
            state = forward_steps(
                X, x, h, mask, state, i, stride, pace, valid, lane - row, M, BLOCK, GATE, STEPS
            )
    for i in range(many, i1):
        state = forward_steps(
            X, x, h, mask, state, i, stride, pace, valid, lane - row, M, BLOCK, GATE, 1
        )
    store_state(final, s, state, n, block, own, valid & (lane * 0 + last > 0), M, BLOCK)


@triton.jit
def older(h, h0, i, stride, LAGS: tl.constexpr, EDGE: tl.constexpr):
    """The output LAGS steps before step i; if EDGE, it may be in h0."""
    if not EDGE:
        return tl.load(h + (i - LAGS) * stride).to(tl.float32)
    else:
        zero = tl.zeros(h.shape, tl.int32)
        back = zero + i - LAGS
        y = tl.load(h + (i - LAGS) * stride, mask=back >= 0, other=0.0).to(tl.float32)
        if h0 is not None:
            y = tl.where(
                back < 0, tl.load(h0 - back - 1, mask=back < 0, other=0.0).to(tl.float32), y
            )
        return y


@triton.jit
def adjoint(f, scaled, k, lane, row, valid, M: tl.constexpr, BLOCK: tl.constexpr):
    """The adjoint state before a step, from the adjoint state after it and λ / Z."""
    p = ()
    for j in tl.static_range(M):
        p += (f[j] * scaled,)
    if BLOCK:
        return (transposed_sum(p, lane, row, valid),)
    else:
        moved = ()
        for j in tl.static_range(M):
            moved += (p[j] + k[j + 1] if j + 1 < M else p[j],)
        return moved


@triton.jit
def store_gradients(
    dX, dx, g, f, w, scale, low, u, v, lam, real, valid, home,
    M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Store dg_j = slope_j λ (u_j − pull_j y) / Z and dv = a λ, or zero at masked steps."""
    JACOBIAN: tl.constexpr = "softmax" if GATE == "hardmax" else GATE
    COLUMNS: tl.constexpr = M if GATE is None else M + 1
    scaled = lam * scale
    entries = ()
    for j in tl.static_range(M):
        entries += (entry_of(u, j, home, M, BLOCK),)
    entries += (v,)
    y = f[0] * entries[0]
    for j in tl.static_range(1, COLUMNS):
        y += f[j] * entries[j]
    y *= scale
    for j in tl.static_range(COLUMNS):
        dg = slope(g[j], f[j], JACOBIAN) * scaled * (entries[j] - pull(f[j], low, JACOBIAN) * y)
        if JACOBIAN == "softmax" and COLUMNS == 2:
            # u_j − y = w_other (u_j − u_other), without cancellation
            both = f[0] * scaled * (f[1] * scale) * (entries[0] - entries[1])
            dg = both if j == 0 else -both
        tl.store(dX + j, tl.where(real, dg, tl.zeros_like(dg)) if MASKED else dg, mask=valid)
    dv = lam if GATE is None else w[M] * (lam if GATE == "hardmax" else scaled)
    tl.store(dx, tl.where(real, dv, tl.zeros_like(dv)) if MASKED else dv, mask=valid)


@triton.jit
def backward_steps(
    X, x, h0, h, dh, dX, dx, lags, mask, k, window, i, stride, pace, valid, lane, row,
    M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, WRITE: tl.constexpr,
    STEPS: tl.constexpr, EDGE: tl.constexpr,
):  # fmt: skip
    """Run steps i, i − 1 .. i − STEPS + 1: read all of them, then compute one after the other."""
    JACOBIAN: tl.constexpr = "softmax" if GATE == "hardmax" else GATE
    LAGS: tl.constexpr = 1 if BLOCK else M
    COLUMNS: tl.constexpr = M if GATE is None else M + 1
    rows = ()
    for q in tl.static_range(STEPS):
        g, v, real = read(X, x, mask, i - q, stride, pace, COLUMNS)
        dy = tl.load(dh + (i - q) * stride).to(tl.float32)
        oldest = dy
        if WRITE and lags is None:
            oldest = older(h, h0, i - q, stride, LAGS, EDGE)
        rows += ((g, v, real, dy, oldest),)
    for q in tl.static_range(STEPS):
        g, v, real, dy, oldest = rows[q]
        f, scale, low = numerators(g, JACOBIAN)
        lam = dy + k[0]
        w = one_hot(g) if GATE == "hardmax" else f
        if WRITE:
            to = (i - q) * stride
            window = window[1:] + (oldest,) if lags is None else load_row(lags + to * M, M)
            store_gradients(
                dX + to * COLUMNS, dx + to, g, f, w, scale, low, window, v, lam, real, valid,
                lane - row, M, BLOCK, GATE, mask is not None,
            )  # fmt: skip
        scaled = lam if GATE == "hardmax" else lam * scale
        moved = adjoint(w, scaled, k, lane, row, valid, M, BLOCK)
        k = moved if mask is None else choose(real, moved, (lam,) + k[1:])
    return k, window


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def backward(
    X, x, h0, h, dh, dfinal, dX, dx, dh0, lags, ends, mask, cu, owner, first,
    T, length, per, n, tiles,
    M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, REVERSE: tl.constexpr,
    CHUNKED: tl.constexpr, LANES: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """Compute dX, dx and dh0. With chunks, dfinal contains the adjoint state after each chunk.

    With `ends`, compute only e', the adjoint state before each chunk if that after it is zero, and
    store it in the last column of `ends`.
    """
    WRITE: tl.constexpr = ends is None
    ROWS: tl.constexpr = M if BLOCK else 1
    LAGS: tl.constexpr = 1 if BLOCK else M
    COLUMNS: tl.constexpr = M if GATE is None else M + 1
    c = tl.program_id(0) // tiles
    lane, row, block, own, valid = place(tl.program_id(0) % tiles, n, M, BLOCK, LANES)
    s, start, steps, number, i0, i1, _ = locate(c, cu, owner, first, T, length, per, CHUNKED)
    begin, pace = enter(start, steps, REVERSE)
    channel = block * ROWS + own
    at = begin * n * ROWS + channel
    X, x, dh, stride = X + at * COLUMNS, x + at, dh + at, pace * n * ROWS
    mask = mask if mask is None else mask + begin + lane * 0
    k = load_state(dfinal, c, n, block, own, M, BLOCK)
    window = ()
    if WRITE:
        h, dX, dx = h + at, dX + at * COLUMNS, dx + at
        h0 = h0 if h0 is None else h0 + (s.to(tl.int64) * n * ROWS + channel) * LAGS
        lags = lags if lags is None else lags + at * M
    # `window` starts as the state after the chunk. If `lags` is given, it is read at each step
    # instead.
    for j in tl.static_range(LAGS):
        window += (
            older(h, h0, i1 - 1 - j + LAGS, stride, LAGS, True) if WRITE and lags is None else k[0],
        )
    few = i1
    # The steps whose lags do not reach into h0. Higher orders would take minutes to compile twice.
    if STEPS > 1 or (not BLOCK and M <= 16):
        inner = tl.maximum(i0, tl.minimum(LAGS, i1))
        few = inner + (i1 - inner) % STEPS
        for r in range(0, i1 - few, STEPS):
            k, window = backward_steps(
                X, x, h0, h, dh, dX, dx, lags, mask, k, window, i1 - 1 - r, stride, pace, valid,
                lane, row, M, BLOCK, GATE, WRITE, STEPS, False,
            )  # fmt: skip
    for r in range(few - i0):
        k, window = backward_steps(
            X, x, h0, h, dh, dX, dx, lags, mask, k, window, few - 1 - r, stride, pace, valid,
            lane, row, M, BLOCK, GATE, WRITE, 1, True,
        )  # fmt: skip
    if WRITE:
        store_state(dh0, s, k, n, block, own, valid & (lane * 0 + number == 0), M, BLOCK)
    else:
        store_state(ends, c * (M + 1) + M, k, n, block, own, valid, M, BLOCK)


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def summarise(
    X, x, ends, mask, cu, owner, first, T, length, per, n, tiles,
    M: tl.constexpr, BLOCK: tl.constexpr, GATE: tl.constexpr, REVERSE: tl.constexpr,
    COUNT: tl.constexpr, LANES: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Compute the columns of each chunk's P, and, if COUNT > M, its e."""
    ROWS: tl.constexpr = M if BLOCK else 1
    COLUMNS: tl.constexpr = M if GATE is None else M + 1
    k = tl.program_id(0) // tiles
    lane, row, block, own, valid = place(tl.program_id(0) % tiles, n, M, BLOCK, LANES)
    _, start, steps, _, i0, i1, _ = locate(k, cu, owner, first, T, length, per, True)
    begin, pace = enter(start, steps, REVERSE)
    at = begin * n * ROWS + (block * ROWS + own)
    X, x, stride = X + at * COLUMNS, x + at, pace * n * ROWS
    mask = mask if mask is None else mask + begin + lane * 0
    column = tl.program_id(1) * TOGETHER
    states = ()
    for c in tl.static_range(TOGETHER):
        states += (unit(column + c, row, M, BLOCK),)
    for i in range(i0, i1):
        g, v, real = read(X, x, mask, i, stride, pace, COLUMNS)
        f, scale = weights(g, GATE)
        moved = ()
        for c in tl.static_range(TOGETHER):
            drive = tl.where(lane * 0 + column + c == M, v, tl.zeros_like(v))
            new = push(
                states[c], output(f, scale, drive, states[c], lane - row, M, BLOCK, GATE), BLOCK
            )
            moved += (new if mask is None else choose(real, new, states[c]),)
        states = moved
    for c in tl.static_range(TOGETHER):
        wanted = valid & (lane * 0 + column + c < COUNT)
        store_state(ends, k * (M + 1) + column + c, states[c], n, block, own, wanted, M, BLOCK)


@triton.jit
def unit(column, row, M: tl.constexpr, BLOCK: tl.constexpr):
    """The unit vector of a column, or zero beyond the last column."""
    state = ()
    for i in tl.static_range(1 if BLOCK else M):
        state += (((row if BLOCK else row * 0 + i) == column).to(tl.float32),)
    return state


@triton.jit(do_not_specialize=SIZES, do_not_specialize_on_alignment=POINTERS)
def join(
    ends, h0, entries, first, per, n, tiles,
    M: tl.constexpr, ADJOINT: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compute the state that enters each chunk: h → P h + e, or in reverse k → Pᵀ k + e'."""
    s = tl.program_id(0) // tiles
    lane, row, block, own, valid = place(tl.program_id(0) % tiles, n, M, True, LANES)
    state = load_state(h0, s, n, block, own, M, True)
    begin, stop = s * per, s * per + per
    if first is not None:
        begin, stop = tl.load(first + s), tl.load(first + s + 1)
    for r in range(stop - begin):
        c = (stop - 1 - r if ADJOINT else begin + r).to(tl.int64)
        store_state(entries, c, state, n, block, own, valid, M, True)
        matrix = ends + c * (M + 1) * n * M
        new = tl.load(matrix + M * n * M + block * M + own)
        for j in tl.static_range(M):
            # Column j contains P_ij for all rows i. For the transpose, a lane reads its own column.
            entry = (own * n + block) * M + j if ADJOINT else (j * n + block) * M + own
            new += tl.load(matrix + entry) * entry_of(state, j, lane - row, M, True)
        state = (new,)
