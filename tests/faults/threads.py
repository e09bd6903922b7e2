"""Threads, forked children and changed numbers of threads: the same bits as one thread alone."""

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from faults.runner import Kind, Outcome
from statemix import BDLRU, HLRU, gated_block_scan, gated_companion_scan

__all__ = ["KIND"]


def _work(rng: random.Random, *, layers: bool) -> tuple[str, Callable[[], list[Tensor]]]:
    """A scan or a layer, with its gradients."""
    m, n, T = rng.choice((1, 2, 3, 4, 5, 8)), rng.choice((5, 16, 64)), rng.choice((13, 64, 300))
    generator = torch.Generator().manual_seed(rng.getrandbits(32))
    names = ("gated_block_scan", "gated_companion_scan", *(("BDLRU", "HLRU") if layers else ()))
    name = rng.choice(names)
    if name in ("BDLRU", "HLRU"):
        torch.manual_seed(rng.getrandbits(32))
        layer = {"BDLRU": BDLRU, "HLRU": HLRU}[name](24, n, m)
        x = torch.randn(2, T, 24, generator=generator)

        def run_layer() -> list[Tensor]:
            leaf = x.clone().requires_grad_()
            y, final = layer(leaf)
            return [y, final, torch.autograd.grad(y.sum() + final.sum(), leaf)[0]]

        return f"{name}(24, {n}, {m}), T = {T}", run_layer
    is_block = name == "gated_block_scan"
    gates = torch.randn(2, T, n, *((m,) if is_block else ()), m + 1, generator=generator)
    v = torch.randn(gates.shape[:-1], generator=generator)
    scan = gated_block_scan if is_block else gated_companion_scan

    def run_scan() -> list[Tensor]:
        leaves = [gates.clone().requires_grad_(), v.clone().requires_grad_()]
        h, final = scan(*leaves)
        return [h, final, *torch.autograd.grad(h.sum() + final.sum(), leaves)]

    return f"{name}, T = {T}, n = {n}, m = {m}", run_scan


def _same(found: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def _in_threads(work: Callable[[], list[Tensor]], expected: list[Tensor]) -> bool:
    """Eight threads call at once, five times each."""
    wrong: list[int] = []

    def call(number: int) -> None:
        if any(not _same(work(), expected) for _ in range(5)):
            wrong.append(number)

    team = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    return not wrong


def _in_a_child(work: Callable[[], list[Tensor]], expected: list[Tensor]) -> bool:
    """A forked child runs both passes; the parent has run the forward pass only."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = 0 if _same(work(), expected) else 1
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


def _with_threads(work: Callable[[], list[Tensor]], expected: list[Tensor]) -> bool:
    """The number of threads changes from call to call."""
    try:
        for count in (2, 1, 4, 3, 8, 1):
            torch.set_num_threads(count)
            if not _same(work(), expected):
                return False
    finally:
        torch.set_num_threads(1)
    return True


_WAYS = {
    "eight threads": _in_threads,
    "a forked child": _in_a_child,
    "changed numbers of threads": _with_threads,
}


def _case(rng: random.Random, folder: Path) -> Outcome:
    way = rng.choice(sorted(_WAYS))
    # Torch's own products of matrices may round differently with other numbers of threads.
    what, work = _work(rng, layers=_WAYS[way] is not _with_threads)
    if _WAYS[way](work, work()):
        return Outcome(f"{way}: same bits")
    return Outcome("different", f"{what}, {way}: other bits")


KIND = Kind("threads", "threads and forks", 10, _case, seconds=60, small=range(4))
