"""The contests of `statemix bench speed`.

kernel    forward and backward into mapped memory, relative to a loop that only moves the same bytes
scan      the gated scans as users call them, and other implementations relative to them
layer     BD-LRU and H-LRU, and other recurrent layers and projections relative to them
threads   the scan with several threads, relative to one thread
length    time per token, from short sequences to long ones, at equal B · T
"""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch

from statemix.bench import gpu
from statemix.bench.config import SpeedConfig
from statemix.bench.gates import gates_contests
from statemix.bench.layer import layer_contests
from statemix.bench.lm_step import MODELS, lm_contest
from statemix.bench.measure import Contest, Row, hold
from statemix.bench.rivals import (
    Entrant,
    available,
    companion_contest,
    contest_entrants,
    differentiated,
    ours,
)
from statemix.bench.step import step_contest
from statemix.bench.task_step import task_contests
from statemix.bench.throughput import throughput_contests
from statemix.kernels.calls import Recurrence
from statemix.kernels.cpu import pool
from statemix.kernels.cpu.library import Missing, load
from statemix.kernels.cpu.scans import GATES, Scan, ScanGradient, pointer
from statemix.kernels.lanes import LANES, sizes_of

__all__ = ["DRAM_SIZE", "results"]

DRAM_SIZE = 1 << 28  # bytes of gates, more than any cache holds


def _contests(config: SpeedConfig, part: str) -> Iterator[Contest]:
    """Yield the contests of one part; each creates its inputs when it is reached."""
    B = config.batch
    T = config.length
    n = config.blocks
    device = config.device
    if part == "kernel":
        for block in (True, False):
            for m in config.block_sizes:
                yield from (
                    gpu.kernel_contests(block, (B, T, n, m))
                    if device == "cuda"
                    else _kernel_contests(block, B, T, n, m)
                )
    if part == "scan":
        yield from _scan_contests(config)
    if part == "gates":
        for m in config.block_sizes:
            yield from gates_contests((B, T, n, m))
    if part == "layer":
        for threads in config.threads:
            bf16 = config.dtype == "bfloat16" and device == "cpu"
            for contest in layer_contests((B, T, n, 4), threads, bf16=bf16):
                yield replace(contest, device=device)
    yield from (replace(contest, device=device) for contest in _fixed_contests(config, part))
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
        setting = f"B · T = {B * T}, n = {n}, m = 4"
        yield Contest(part, setting, next(iter(entrants)), entrants, device=device)


def _scan_contests(config: SpeedConfig) -> Iterator[Contest]:
    """Block scans at every size, and companion scans if a rival computes them."""
    names = available(config.rivals or ())
    for threads, m in product(config.threads, config.block_sizes):
        sizes = (config.batch, config.length, config.blocks, m)
        block = contest_entrants(sizes, names)
        yield Contest("scan", f"(B, T, n, m) = {sizes}", "statemix", block, threads, config.device)
        companion = companion_contest(sizes, names)
        if companion:
            setting = f"companion, (B, T, n, m) = {sizes}"
            yield Contest("scan", setting, "statemix", companion, threads, config.device)


def _fixed_contests(config: SpeedConfig, part: str) -> Iterator[Contest]:
    """The contests of the parts with fixed sizes."""
    if part == "step":
        yield step_contest()
        if config.device == "cpu":
            yield from task_contests()
    if part == "lm":
        for length, batch in product(config.lm_lengths, config.lm_batches):
            models = MODELS if config.lm_models is None else config.lm_models
            bf16 = config.dtype == "bfloat16" and config.device == "cpu"
            yield lm_contest(batch, length, models=models, bf16=bf16, limit=config.lm_limit)
    if part == "throughput":
        yield from throughput_contests("hop_scan compiled" in (config.rivals or ()))


def _kernel_contests(block: bool, B: int, T: int, n: int, m: int) -> Iterator[Contest]:
    """Forward and backward of one kernel in lane order, each relative to its floor."""
    library = load()
    if isinstance(library, Missing):
        raise SystemExit(f"statemix: no kernels to measure: {library.reason}.")
    sizes = sizes_of(
        n, m, recurrence=Recurrence.BLOCK if block else Recurrence.COMPANION, gate="softmax"
    )
    B = max(B, -(-DRAM_SIZE // (4 * T * sizes.inputs)))
    N = B * T
    inputs = sizes.inputs // LANES  # vectors per step
    states = sizes.states // LANES
    gates, h, dh, dgates = (
        pool.empty((N, width * LANES)).normal_() for width in (inputs, states, states, inputs)
    )
    everything = pool.empty((N, (inputs + 2 * states) * LANES)).normal_()
    bounds = torch.arange(B + 1) * T
    state = torch.zeros(B, n, m)
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
        0,
        *(pointer(y) for y in (bounds, None, None, gates, None, None, h, state)),
    )
    gradient = ScanGradient(scan, *(pointer(y) for y in (dh, None, dgates, None, state)))
    handle = library.handle
    kept = (gates, h, dh, dgates, everything, bounds, state)  # alive as long as the calls

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


def _thread_rows(config: SpeedConfig) -> Iterator[list[Row]]:
    """The scan with each number of threads; also at B = 1, where threads divide the blocks."""
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
        setting = f"(B, T, n, m) = {sizes}"
        yield hold(Contest("threads", setting, "1 thread", entrants, threads=2), config.rounds)


def results(config: SpeedConfig, part: str) -> Iterator[tuple[list[Row], int]]:
    """Hold the contests of a part; yield the rows of each, and the bytes it moves (0: unknown)."""
    if part == "threads":
        for rows in _thread_rows(config):
            yield rows, 0
    for contest in _contests(config, part):
        yield hold(contest, config.rounds), contest.moved
