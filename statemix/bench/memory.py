"""How much memory a layer needs on top of its input, forward and backward, with gates kept and computed again.

Each is the peak of the process's resident memory over what it was before, of a process of its own.
"""

import multiprocessing
import resource
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from statemix.bench.measure import Row, check_writable, report, show_progress
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


def print_memory(config: MemoryConfig, out: Path | None) -> None:
    """Measure both layers both ways; print a table, and append JSON lines to `out`."""
    check_writable(out)
    rows: list[Row] = []
    with show_progress() as progress:
        task = progress.add_task("memory")
        for layer in LAYERS:
            sizes = f"d = {config.width}, m = {config.block_size}, B = {config.batch}, T = {config.length}, {config.depth} deep"
            found = {}
            for save_memory in (False, True):
                progress.update(task, description=f"memory: {layer}, save_memory={save_memory}")
                found[save_memory] = in_own_process(layer, save_memory, config)
            for save_memory, peak in found.items():
                entrant = f"{layer}, save_memory={save_memory}"
                rows.append(
                    Row(
                        "memory",
                        sizes,
                        entrant,
                        torch.get_num_threads(),
                        peak,
                        "MiB",
                        f"{layer}, save_memory=True",
                        peak / found[True],
                        1,
                    )
                )
    report("peak memory over the input, forward + backward", rows, out)
