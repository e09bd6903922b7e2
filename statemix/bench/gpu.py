"""The bench on a GPU: the kernels over a copy of the same bytes, and the bandwidth that they reach.

All other contests are those of the CPU, built on torch's default device.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statemix.bench.measure import Contest, Row
from statemix.ops.dispatch.gpu import plan_of, run_backward, run_forward, unavailable
from statemix.ops.dispatch.scans import Recurrence, ScanCall
from statemix.ops.precision import output_dtype

if TYPE_CHECKING:
    from statemix.bench.speed import SpeedConfig


def checked(config: "SpeedConfig") -> "SpeedConfig":
    """Check that there is a GPU with kernels, and drop the part threads."""
    if not torch.cuda.is_available():
        raise SystemExit(
            "statemix: --device cuda needs a GPU, and torch sees none. "
            "`statemix info` shows which torch is installed."
        )
    if reason := unavailable():
        raise SystemExit(f"statemix: no kernels to measure: {reason}.")
    if "threads" in config.parts:
        print("left out on a GPU: the part threads", file=sys.stderr)
    return replace(
        config, parts=tuple(part for part in config.parts if part != "threads"), threads=(1,)
    )


@contextmanager
def defaults(device: str, dtype: str) -> Iterator[None]:
    """Let torch build tensors and modules on `device` and in `dtype`."""
    before = torch.get_default_dtype()
    torch.set_default_dtype({"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype])
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def kernel_contests(block: bool, sizes: tuple[int, int, int, int]) -> Iterator[Contest]:
    """Forward and backward of one kernel, each against a copy that moves as many bytes."""
    B, T, n, m = sizes
    torch.manual_seed(0)
    driver = (B, T, n, m) if block else (B, T, n)
    gates, v, dh = torch.randn(*driver, m + 1), torch.randn(driver), torch.randn(driver)
    recurrence = Recurrence.BLOCK if block else Recurrence.COMPANION
    call = ScanCall(recurrence, "softmax", gates, v)
    dfinal = torch.zeros(B, n, m, dtype=torch.float32)
    plan = plan_of(call)
    h, _ = run_forward(call, plan)
    name, device = f"{'BD-LRU' if block else 'H-LRU'} m = {m}", gates.device.type
    read, written = sum(map(size, (gates, v))), size(h)
    forward = {"copy": copy_of(read + written), "kernel": lambda: run_forward(call, plan)}
    yield Contest(
        "kernel",
        f"{name}, forward, {output_dtype(gates)}",
        "copy",
        forward,
        device=device,
        moved=read + written,
    )
    moved = 2 * read + size(h) + size(dh)
    backward = {"copy": copy_of(moved), "kernel": lambda: run_backward(call, h, dh, dfinal, plan)}
    yield Contest(
        "kernel",
        f"{name}, backward, {output_dtype(gates)}",
        "copy",
        backward,
        device=device,
        moved=moved,
    )


def size(x: Tensor) -> int:
    """Bytes."""
    return x.numel() * x.element_size()


def copy_of(moved: int):
    """A call that reads half of `moved` bytes and writes the other half."""
    source = torch.zeros(moved // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def bandwidth_rows(rows: list[Row], moved: int) -> list[Row]:
    """GB/s of each entrant, over what the device's data sheet says, or else over the copy."""
    rates = {row.entrant: moved / row.value / 1e6 for row in rows}
    peak = peak_bandwidth()
    over, reference = (
        ("copy", rates["copy"]) if peak is None else (f"{peak:.0f} GB/s of the device", peak)
    )
    return [
        replace(
            row,
            part="bandwidth",
            value=rates[row.entrant],
            unit="GB/s",
            reference=over,
            ratio=rates[row.entrant] / reference,
        )
        for row in rows
    ]


def peak_bandwidth() -> float | None:
    """GB/s of the device's memory, where the driver tells: two transfers a clock, over the width of its bus."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not (hasattr(properties, "memory_clock_rate") and hasattr(properties, "memory_bus_width")):
        return None
    return 2 * properties.memory_clock_rate * properties.memory_bus_width / 8 / 1e6
