"""Several ranks on this machine: spawn them, let each do the same thing, and bring home what went wrong."""

import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def on_ranks(count: int, work: Callable[..., None], directory: Path, *arguments: object) -> None:
    """Call `work(rank, count, *arguments)` in `count` processes that form a gloo group; raise what any of them raised."""
    directory.mkdir(parents=True, exist_ok=True)
    mp.spawn(_enter, (count, work, str(directory / "store"), arguments), nprocs=count, join=True)


def _enter(
    rank: int, count: int, work: Callable[..., None], store: str, arguments: tuple[object, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=TIMEOUT
    )
    try:
        work(rank, count, *arguments)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def attempt(check: Callable[[], None]) -> str:
    """The traceback of what `check` raised, or nothing."""
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""
