"""Write calls of the compiled library and their results to a file, for `run_vectors.cpp`.

python tools/write_vectors.py FILE
"""

import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from statemix.kernels.calls import Recurrence, ScanCall
from statemix.kernels.cpu import scans
from statemix.kernels.cpu.library import Library
from statemix.ops.dispatch import cpu

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17)
T = 13
N = 11


def calls() -> Iterator[ScanCall]:
    """Every recurrence, size and gate function; in both directions, packed and masked."""
    gates = sorted(scans.SUPPORTED_GATES - {None})
    for recurrence, m, gate in product(Recurrence, SIZES, [None, *gates]):
        driver = (2, T, N, m) if recurrence.is_block else (2, T, N)
        X = torch.randn(*driver, m + (gate is not None)) / (m + 1 if gate in (None, "none") else 1)
        call = ScanCall(recurrence, gate, X, torch.randn(driver), torch.randn(2, N, m))
        yield call
        yield replace(call, reverse=True, mask=torch.arange(2 * T).view(2, T) % 3 != 1)


def write(path: Path) -> int:
    """Write all calls; return their number."""
    library = cpu.find_library()
    assert isinstance(library, Library), library.reason
    count = 0
    with path.open("wb") as file:
        for call in calls():
            h, final = scans.forward(library, call)
            dh, dfinal = torch.randn_like(h), torch.randn_like(final)
            dX, dx, dh0 = scans.backward(library, call, h, dh, dfinal)
            B, _, n = call.x.shape[:3]
            header = (B, T, n, B, call.m, scans.GATES[call.gate], call.reverse)
            file.write(struct.pack("9q", *header, call.recurrence.is_block, call.mask is not None))
            assert call.h0 is not None
            for y in (call.X, call.x, call.h0, h, final, dh, dfinal, dX, dx, dh0):
                write_tensor(file, y)
            if call.mask is not None:
                file.write(call.mask.to(torch.uint8).numpy().tobytes())
            count += 1
    return count


def write_tensor(file, y: Tensor) -> None:
    file.write(struct.pack("q", y.numel()) + y.contiguous().numpy().tobytes())


if __name__ == "__main__":
    torch.manual_seed(0)
    print(f"{write(Path(sys.argv[1]))} calls written")
