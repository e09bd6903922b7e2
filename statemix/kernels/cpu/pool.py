"""Large outputs from blocks that are used again.

The C library maps every large tensor afresh, and the kernel's page faults for it cost more than the scan that fills it.  A block
taken from here goes back to a free list when the last tensor on it dies, and its pages stay.

    STATEMIX_POOL=off        every output from torch.empty
    STATEMIX_POOL=512        at most 512 MiB of free blocks are kept (default 1024)

Blocks are private mappings: a forked child has its own.  Taking and giving back are single operations on a list, so any thread may.
"""

import ctypes
import math
import mmap
import os
import weakref
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor
from torch.utils import deterministic

SWITCH = "STATEMIX_POOL"
SMALLEST = 1 << 20
GRAIN = 1 << 21  # a huge page
SLACK = 1.25  # a free block serves a request of at least 1 / SLACK of its size
FREE: list[mmap.mmap] = []


@cache
def limit() -> int:
    """How many bytes of free blocks to keep; 0 switches the pool off."""
    value = os.environ.get(SWITCH, "1024")
    if value.lower() == "off" or not hasattr(mmap, "MAP_ANONYMOUS"):
        return 0
    if not value.isdigit():
        raise ValueError(
            f"The environment variable {SWITCH} must be 'off' or a number of MiB, got {value!r}."
        )
    return int(value) << 20


def empty(shape: tuple[int, ...]) -> Tensor:
    """An unwritten float32 CPU tensor: from the pool if it is large, else from torch."""
    count = math.prod(shape)
    size = 4 * count
    if size < SMALLEST or limit() == 0:
        return torch.empty(shape, dtype=torch.float32)
    block = take(size)
    memory = (ctypes.c_char * size).from_buffer(block)
    weakref.finalize(memory, give_back, block).atexit = False
    tensor = reshaped(torch.frombuffer(memory, dtype=torch.float32, count=count), shape)
    # As torch.empty does in this mode.
    if torch.are_deterministic_algorithms_enabled() and deterministic.fill_uninitialized_memory:  # type: ignore[attr-defined]
        tensor.fill_(torch.nan)
    return tensor


def reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The memory of a contiguous tensor in another shape, and not as a view of it: what an op returns may be changed in place."""
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), shape)  # type: ignore[call-overload]


def empty_like(x: Tensor) -> Tensor:
    """An unwritten float32 tensor of the shape of `x`."""
    return empty(tuple(x.shape))


def take(size: int) -> mmap.mmap:
    """A free block of about `size` bytes, or a new one."""
    fitting = [block for block in FREE if size <= len(block) <= SLACK * size + GRAIN]
    for block in sorted(fitting, key=len):
        try:
            FREE.remove(block)
        except ValueError:  # another thread was faster
            continue
        return block
    block = mmap.mmap(-1, -(-size // GRAIN) * GRAIN, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def give_back(block: mmap.mmap) -> None:
    """Keep the block for the next request; let the oldest ones go where there are too many."""
    FREE.append(block)
    while sum(map(len, FREE)) > limit():
        with suppress(IndexError):  # another thread was faster
            FREE.pop(0)


def release() -> None:
    """Return all free blocks to the system."""
    FREE.clear()
