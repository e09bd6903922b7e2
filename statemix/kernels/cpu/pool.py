"""A memory pool for large outputs.

The C library allocates every large tensor as a new mapping, whose page faults cost more than the
scan that fills it. A block of this pool returns to a free list when its last tensor is deleted, and
its pages stay mapped.

    STATEMIX_POOL=off        allocate all outputs with torch.empty
    STATEMIX_POOL=512        keep at most 512 MiB of free blocks (default: 1024)

Blocks are private mappings, so a forked process has its own copy. The free list is only modified by
atomic list operations, so the pool is thread-safe.
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

__all__ = ["FREE", "SMALLEST", "empty", "empty_like", "limit", "release", "reshaped"]

SWITCH = "STATEMIX_POOL"
SMALLEST = 1 << 20
GRAIN = 1 << 21  # a huge page
SLACK = 1.25  # a free block may be larger than the request by this factor, plus GRAIN
FREE: list[mmap.mmap] = []


@cache
def limit() -> int:
    """The maximum size of all free blocks in bytes; 0 disables the pool."""
    value = os.environ.get(SWITCH, "1024")
    if value.lower() == "off" or not hasattr(mmap, "MAP_ANONYMOUS"):
        return 0
    if not value.isdigit():
        raise ValueError(
            f"The environment variable {SWITCH} must be 'off' or a number of MiB, got {value!r}."
        )
    return int(value) << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """An uninitialised CPU tensor, from the pool if it is large."""
    count = math.prod(shape)
    size = dtype.itemsize * count
    if size < SMALLEST or limit() == 0:
        return torch.empty(shape, dtype=dtype)
    block = _take(size)
    memory = (ctypes.c_char * size).from_buffer(block)
    weakref.finalize(memory, _give_back, block).atexit = False
    tensor = reshaped(torch.frombuffer(memory, dtype=dtype, count=count), shape)
    # torch.empty does the same in this mode.
    if torch.are_deterministic_algorithms_enabled() and deterministic.fill_uninitialized_memory:  # type: ignore[attr-defined]
        tensor.fill_(torch.nan)
    return tensor


def reshaped(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The memory of a contiguous tensor in another shape, as a tensor that is not a view.

    An op must not return views, because its outputs may be modified in place.
    """
    return x.new_empty(0).set_(x.untyped_storage(), x.storage_offset(), shape)  # type: ignore[call-overload]


def empty_like(x: Tensor) -> Tensor:
    """An uninitialised tensor with the shape and dtype of `x`."""
    return empty(tuple(x.shape), x.dtype)


def _take(size: int) -> mmap.mmap:
    """A free block of at least `size` bytes, or a new one."""
    fitting = [block for block in FREE if size <= len(block) <= SLACK * size + GRAIN]
    for block in sorted(fitting, key=len):
        try:
            FREE.remove(block)
        except ValueError:  # another thread took it first
            continue
        return block
    block = mmap.mmap(-1, -(-size // GRAIN) * GRAIN, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


def _give_back(block: mmap.mmap) -> None:
    """Add a block to the free list; remove the oldest blocks beyond the limit."""
    FREE.append(block)
    while sum(map(len, FREE)) > limit():
        with suppress(IndexError):  # another thread removed it first
            FREE.pop(0)


def release() -> None:
    """Return all free blocks to the operating system."""
    FREE.clear()
