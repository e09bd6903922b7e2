"""Run the same function on several local ranks, and report their errors."""

import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT = timedelta(seconds=60)


def on_ranks(count: int, work: Callable[..., None], directory: Path, *arguments: object) -> None:
    """Call `work(rank, count, *arguments)` in `count` processes of a gloo group; raise errors."""
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
    """Call `check`; return the traceback of its error, or an empty string."""
    try:
        check()
    except Exception:
        return traceback.format_exc()
    return ""
