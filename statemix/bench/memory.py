"""How much memory a layer needs on top of its input, forward and backward, with gates kept and computed again.

Each is the peak of the process's resident memory over what it was before, of a process of its own.
"""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from statemix.bench.measure import Row
from statemix.layers import BDLRU, HLRU

LAYERS = {"BDLRU": BDLRU, "HLRU": HLRU}


@dataclass(frozen=True)
class MemoryConfig:
    """Sizes of the layers."""

    batch: int
    length: int
    width: int
    block_size: int
    depth: int


def forget_peak() -> None:
    """Let the peak begin anew at what is resident now, where the system can."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float:
    """The peak of this process's resident memory since it was last forgotten."""
    status = Path("/proc/self/status")
    if status.exists():
        return (
            next(
                int(line.split()[1])
                for line in status.read_text().splitlines()
                if line.startswith("VmHWM")
            )
            / 1024
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1024 if sys.platform != "darwin" else peak / 1024**2


def measure(layer: str, save_memory: bool, config: MemoryConfig) -> float:
    """Peak MiB of forward and backward through `depth` layers, over what stood before."""
    d, m = config.width, config.block_size
    torch.manual_seed(0)
    layers = nn.ModuleList(
        LAYERS[layer](d, d // m, m, save_memory=save_memory) for _ in range(config.depth)
    )
    # Once at a small size: libraries and threads take their memory before the count begins.
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
    connection.send(measure(layer, save_memory, config))


def in_own_process(layer: str, save_memory: bool, config: MemoryConfig) -> float:
    """`measure` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_into, args=(sender, layer, save_memory, config))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    except EOFError as error:
        raise SystemExit(
            f"statemix: measuring {layer} with save_memory={save_memory} failed; its error is above."
        ) from error
    finally:
        process.join()


def measure_all(config: MemoryConfig, observe: Callable[[str], None]) -> list[Row]:
    """Both layers with gates kept and recomputed; `observe` receives each measurement's name."""
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
            peaks[entrant] = in_own_process(layer, save_memory, config)
        reference = f"{layer}, save_memory=True"
        threads = torch.get_num_threads()
        for entrant, peak in peaks.items():
            ratio = peak / peaks[reference]
            rows.append(Row("memory", sizes, entrant, threads, peak, "MiB", reference, ratio, 1))
    return rows
