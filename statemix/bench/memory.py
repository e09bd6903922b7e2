"""Peak memory of a layer beyond its input, forward and backward, with gates stored or recomputed.

Each measurement is the increase of peak resident memory in a separate process.
"""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from statemix.bench.config import MemoryConfig
from statemix.bench.measure import Row
from statemix.layers import BDLRU, HLRU

__all__ = ["LAYERS", "forget_peak", "measure_all", "peak_mib"]

LAYERS = {"BDLRU": BDLRU, "HLRU": HLRU}


def forget_peak() -> None:
    """Reset the peak to the memory that is resident now, if the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """The peak of this process's resident memory since the last reset, in MiB."""
    status = Path("/proc/self/status")
    if status.exists():
        lines = status.read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 1024**2


def _measure(layer: str, save_memory: bool, config: MemoryConfig) -> float:
    """The increase of peak memory in forward and backward through `depth` layers, in MiB."""
    d = config.width
    m = config.block_size
    torch.manual_seed(0)
    layers = nn.ModuleList(
        LAYERS[layer](d, d // m, m, save_memory=save_memory) for _ in range(config.depth)
    )
    # Run once at a small size, so that the memory of libraries and threads is not counted.
    for length in (8, config.length):
        x = torch.randn(config.batch if length > 8 else 1, length, d, requires_grad=True)
        forget_peak()
        before = peak_mib()
        y = x
        for module in layers:
            y, _ = module(y)
        y.sum().backward()
    return peak_mib() - before


def _measure_into(connection, layer: str, save_memory: bool, config: MemoryConfig) -> None:
    connection.send(_measure(layer, save_memory, config))


def _in_own_process(layer: str, save_memory: bool, config: MemoryConfig) -> float:
    """Call `_measure` in a new process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_into, args=(sender, layer, save_memory, config))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        raise SystemExit(
            f"statemix: measuring {layer} with save_memory={save_memory} failed; "
            "its error is above."
        ) from error
    finally:
        process.join()


def measure_all(config: MemoryConfig, observe: Callable[[str], None]) -> list[Row]:
    """Both layers, with gates stored or recomputed; `observe` receives each entrant."""
    sizes = (
        f"d = {config.width}, m = {config.block_size}, B = {config.batch}, "
        f"T = {config.length}, {config.depth} deep"
    )
    rows = []
    for layer in LAYERS:
        peaks = {}
        for save_memory in (False, True):
            entrant = f"{layer}, save_memory={save_memory}"
            observe(entrant)
            peaks[entrant] = _in_own_process(layer, save_memory, config)
        reference = f"{layer}, save_memory=True"
        threads = torch.get_num_threads()
        for entrant, peak in peaks.items():
            ratio = peak / peaks[reference]
            rows.append(Row("memory", sizes, entrant, threads, peak, "MiB", reference, ratio, 1))
    return rows
