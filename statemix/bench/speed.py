"""How fast: the kernels over the bandwidth of memory, the scans over others, whole layers over their projections.

kernel    forward and backward into memory that is there, over a loop that only moves the same bytes
scan      gated_block_scan as users call it, forward and backward, and others over it
layer     a whole BD-LRU and its torch rivals over the three projections alone
threads   the scan with more threads over itself with one
length    time a token, from short sequences to long ones, at equal B · T
"""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import nn

from statemix.bench import gpu
from statemix.bench.lm_step import lm_contest
from statemix.bench.measure import Contest, Row, hold
from statemix.bench.rivals import Entrant, available, contest_entrants, differentiated, ours
from statemix.bench.step import step_contest
from statemix.bench.throughput import throughput_contests
from statemix.kernels.calls import Recurrence
from statemix.kernels.cpu import pool
from statemix.kernels.cpu.library import Missing, load
from statemix.kernels.cpu.scans import GATES, Scan, ScanGradient, pointer
from statemix.kernels.lanes import LANES, sizes_of
from statemix.layers import BDLRU

LM_BATCHES = (1, 8)  # sequences of a step of the language model
DRAM_SIZE = 1 << 28  # bytes of gates that no cache holds, whatever the block size


@dataclass(frozen=True)
class SpeedConfig:
    """What to measure, and at which sizes."""

    parts: tuple[str, ...]
    batch: int
    length: int
    blocks: int
    block_sizes: tuple[int, ...]
    threads: tuple[int, ...]
    rivals: tuple[str, ...]
    rounds: int
    device: str = "cpu"
    dtype: str = "float32"


def contests(config: SpeedConfig, part: str) -> Iterator[Contest]:
    """The contests of one part; inputs are made when their turn comes."""
    B, T, n, device = config.batch, config.length, config.blocks, config.device
    if part == "kernel":
        for block in (True, False):
            for m in config.block_sizes:
                yield from (
                    gpu.kernel_contests(block, (B, T, n, m))
                    if device == "cuda"
                    else kernel_contests(block, B, T, n, m)
                )
    if part == "scan":
        names = available(config.rivals)
        for threads in config.threads:
            for m in config.block_sizes:
                sizes = (B, T, n, m)
                yield Contest(
                    part,
                    f"(B, T, n, m) = {sizes}",
                    "statemix",
                    contest_entrants(sizes, names),
                    threads,
                    device,
                )
    if part == "layer":
        for threads in config.threads:
            yield replace(layer_contest(B, T, n, 4, threads), device=device)
    yield from (replace(contest, device=device) for contest in whole_contests(config, part))
    if part == "length":
        shapes = [
            (B * T // length, length)
            for length in (64, 256, 1024, 4096, 16384, 65536)
            if length <= B * T
        ]
        entrants = {
            f"B = {b}, T = {length}": differentiated(ours, (b, length, n, 4))
            for b, length in shapes
        }
        yield Contest(
            part, f"B · T = {B * T}, n = {n}, m = 4", next(iter(entrants)), entrants, device=device
        )


def whole_contests(config: SpeedConfig, part: str) -> Iterator[Contest]:
    """The parts whose sizes are their own."""
    if part == "step":
        yield step_contest()
    if part == "lm":
        yield from map(lm_contest, LM_BATCHES)
    if part == "throughput":
        yield from throughput_contests("hop_scan compiled" in config.rivals)


def kernel_contests(block: bool, B: int, T: int, n: int, m: int) -> Iterator[Contest]:
    """Forward and backward of one kernel in the order of lanes, each against its floor."""
    library = load()
    if isinstance(library, Missing):
        raise SystemExit(f"statemix: no kernels to measure: {library.reason}.")
    sizes = sizes_of(
        n, m, recurrence=Recurrence.BLOCK if block else Recurrence.COMPANION, gate="softmax"
    )
    B = max(B, -(-DRAM_SIZE // (4 * T * sizes.inputs)))
    N = B * T
    inputs, states = sizes.inputs // LANES, sizes.states // LANES  # vectors a step
    gates, h, dh, dgates = (
        pool.empty((N, width * LANES)).normal_() for width in (inputs, states, states, inputs)
    )
    everything = pool.empty((N, (inputs + 2 * states) * LANES)).normal_()
    bounds, state = torch.arange(B + 1) * T, torch.zeros(B, n, m)
    scan = Scan(
        B,
        T,
        n,
        B,
        m,
        GATES["odds"],
        False,
        1,
        True,
        *(pointer(y) for y in (bounds, None, None, gates, None, None, h, state)),
    )
    gradient = ScanGradient(scan, *(pointer(y) for y in (dh, None, dgates, None, state)))
    handle, kept = (
        library.handle,
        (gates, h, dh, dgates, everything, bounds, state),
    )  # alive as long as the calls

    def move(src: torch.Tensor, reads: int, dst: torch.Tensor, writes: int) -> Entrant:
        sizes = (
            ctypes.c_void_p(src.data_ptr()),
            ctypes.c_int64(reads),
            ctypes.c_void_p(dst.data_ptr()),
            ctypes.c_int64(writes),
        )
        return lambda: handle.statemix_move(*sizes, ctypes.c_int64(N))

    name = f"{'BD-LRU' if block else 'H-LRU'} m = {m}"
    forward = {
        "floor": move(gates, inputs, h, states),
        "kernel": lambda: (handle.statemix_forward(ctypes.byref(scan), int(block)), kept),
    }
    yield Contest("kernel", f"{name}, forward", "floor", forward)
    backward = {
        "floor": move(everything, inputs + 2 * states, dgates, inputs),
        "kernel": lambda: (handle.statemix_backward(ctypes.byref(gradient), int(block)), kept),
    }
    yield Contest("kernel", f"{name}, backward", "floor", backward)


def layer_contest(B: int, T: int, n: int, m: int, threads: int) -> Contest:
    """A BD-LRU of n blocks and width n m, its projections alone, and torch's recurrent layers of the same width."""
    d = n * m
    x, weight = torch.randn(B, T, d, requires_grad=True), torch.randn(B, T, d)
    W_g, W_v, W_o = (
        nn.Linear(d, d * (m + 1)),
        nn.Linear(d, d, bias=False),
        nn.Linear(d, d, bias=False),
    )
    dgates = torch.randn(B, T, d * (m + 1))

    def projections() -> object:
        parameters = [p for W in (W_g, W_v, W_o) for p in W.parameters()]
        return torch.autograd.grad((W_g(x), W_o(W_v(x))), (x, *parameters), (dgates, weight))

    def layer(module: nn.Module) -> Entrant:
        return lambda: torch.autograd.grad(module(x)[0], (x, *module.parameters()), weight)

    entrants = {
        "projections alone": projections,
        "BDLRU": layer(BDLRU(d, n, m)),
        "BDLRU save_memory": layer(BDLRU(d, n, m, save_memory=True)),
        "nn.LSTM": layer(nn.LSTM(d, d, batch_first=True)),
        "nn.GRU": layer(nn.GRU(d, d, batch_first=True)),
    }
    return Contest(
        "layer",
        f"d = {d}, n = {n}, m = {m}, B = {B}, T = {T}",
        "projections alone",
        entrants,
        threads,
    )


def thread_rows(config: SpeedConfig) -> Iterator[list[Row]]:
    """The scan under each number of threads in turn, in one process; B = 1 too, where groups of blocks are shared out."""
    for B, T in ((config.batch, config.length), (1, config.batch * config.length)):
        sizes = (B, T, config.blocks, 4)
        scan = differentiated(ours, sizes)

        def with_threads(count: int, scan: Entrant = scan) -> Entrant:
            def call() -> None:
                torch.set_num_threads(count)
                scan()

            return call

        entrants = {
            f"{count} thread{'s' * (count > 1)}": with_threads(count)
            for count in sorted({1, *config.threads, 2})
        }
        yield hold(
            Contest("threads", f"(B, T, n, m) = {sizes}", "1 thread", entrants, threads=2),
            config.rounds,
        )


def results(config: SpeedConfig, part: str) -> Iterator[tuple[list[Row], int]]:
    """The rows of each contest of a part, and the bytes it moved if known."""
    if part == "threads":
        for rows in thread_rows(config):
            yield rows, 0
    for contest in contests(config, part):
        yield hold(contest, config.rounds), contest.moved
