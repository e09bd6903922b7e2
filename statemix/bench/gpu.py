"""The bench on a GPU: the kernels relative to a copy of the same bytes, and their bandwidth.

All other contests are the same as on a CPU; they use torch's default device.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from statemix.bench.config import SpeedConfig
from statemix.bench.measure import Contest, Row
from statemix.ops.dispatch.gpu import plan_of, run_backward, run_forward, unavailable
from statemix.ops.dispatch.scans import Recurrence, ScanCall
from statemix.ops.precision import output_dtype

__all__ = ["bandwidth_rows", "checked", "defaults", "kernel_contests"]


def checked(config: SpeedConfig) -> SpeedConfig:
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
    parts = tuple(part for part in config.parts if part != "threads")
    return replace(config, parts=parts, threads=(1,))


@contextmanager
def defaults(device: str, dtype: str) -> Iterator[None]:
    """Make `device` and `dtype` torch's defaults inside the context."""
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
    gates = torch.randn(*driver, m + 1)
    v = torch.randn(driver)
    dh = torch.randn(driver)
    recurrence = Recurrence.BLOCK if block else Recurrence.COMPANION
    call = ScanCall(recurrence, "softmax", gates, v)
    dfinal = torch.zeros(B, n, m, dtype=torch.float32)
    plan = plan_of(call)
    h, _ = run_forward(call, plan)
    name = f"{'BD-LRU' if block else 'H-LRU'} m = {m}"
    read = _size(gates) + _size(v)
    kernels: dict[str, tuple[int, Callable[[], object]]] = {
        "forward": (read + _size(h), lambda: run_forward(call, plan)),
        "backward": (
            2 * read + _size(h) + _size(dh),
            lambda: run_backward(call, h, dh, dfinal, plan),
        ),
    }
    for direction, (moved, kernel) in kernels.items():
        setting = f"{name}, {direction}, {output_dtype(gates)}"
        entrants = {"copy": _copy_of(moved), "kernel": kernel}
        device = gates.device.type
        yield Contest("kernel", setting, "copy", entrants, device=device, moved=moved)


def _size(x: Tensor) -> int:
    """Size of a tensor in bytes."""
    return x.numel() * x.element_size()


def _copy_of(moved: int) -> Callable[[], object]:
    """A call that reads half of `moved` bytes and writes the other half."""
    source = torch.zeros(moved // 2, dtype=torch.uint8)
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def bandwidth_rows(rows: list[Row], moved: int) -> list[Row]:
    """GB/s of each entrant, relative to the nominal bandwidth if known, or else to the copy."""
    rates = {row.entrant: moved / row.value / 1e6 for row in rows}
    peak = _peak_bandwidth()
    reference = "copy" if peak is None else f"{peak:.0f} GB/s of the device"
    return [
        replace(
            row,
            part="bandwidth",
            value=rates[row.entrant],
            unit="GB/s",
            reference=reference,
            ratio=rates[row.entrant] / (peak or rates["copy"]),
        )
        for row in rows
    ]


def _peak_bandwidth() -> float | None:
    """Nominal GB/s of the device's memory, if the driver reports clock rate and bus width."""
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if not (hasattr(properties, "memory_clock_rate") and hasattr(properties, "memory_bus_width")):
        return None
    transfers = 2 * properties.memory_clock_rate  # two per clock
    return transfers * properties.memory_bus_width / 8 / 1e6
