"""Compile the Triton scans ahead of time for three GPUs, and check their use of resources.

No kernel may spill registers, use shared memory, or exceed the budget recorded in
tests/gpu_budget.json. tests/test_gpu.py and `make test-gpu` run these tests in a process without
Triton's interpreter. `python tests/gpu_compiled.py` measures all kernels and rewrites the budget.
"""

import json
import os
from dataclasses import asdict
from itertools import product
from pathlib import Path

import pytest
from gpu_aot import ABSENT, Kernel, Resources, measure

from statemix.kernels.calls import Recurrence
from statemix.kernels.gpu.plan import MAX_SIZE

if os.environ.get("TRITON_INTERPRET") == "1":
    raise RuntimeError(
        "Run these tests with `make test-gpu`: the compiler needs TRITON_INTERPRET unset."
    )

TABLE = Path(__file__).with_name("gpu_budget.json")
TARGETS = ("sm_80", "sm_90", "gfx942")
SIZES = (1, 2, 3, 4, 5, 8, 16)
HEADLINE = [
    Kernel(sweep, block, m, target)
    for target, sweep, block, m in product(TARGETS, ("forward", "backward"), (True, False), SIZES)
    if target == "sm_90" or m in (1, 2, 4, 8, 16)
]
WAYS, KINDS, GATES = (
    ("forward", "backward"),
    (True, False),
    ("hardmax", "sigmoid", "relu", "tanh", "linear", "silu", "none"),
)
MASKED, PACKED = ("mask", "cu", "reverse"), ("cu", "owner", "first")
OTHERS = [
    *(
        Kernel(sweep, block, 4, target, dtype="float32")
        for target, sweep, block in product(TARGETS, WAYS, KINDS)
    ),
    *(Kernel(sweep, block, 4, "sm_90", gate=None) for sweep, block in product(WAYS, KINDS)),
    *(Kernel(sweep, True, 3, "sm_90", gate=gate) for sweep, gate in product(WAYS, GATES)),
    *(
        Kernel(sweep, block, 4, "sm_90", options=MASKED)
        for sweep, block in product(WAYS, KINDS)
        if block or sweep == "forward"
    ),
    Kernel("backward", False, 4, "sm_90", options=(*MASKED, "lags")),
    *(
        Kernel(sweep, True, 4, target, chunked=True, options=PACKED)
        for target, sweep in product(TARGETS, WAYS)
    ),
    *(Kernel("backward", block, 4, "sm_90", chunked=True, options=("ends",)) for block in KINDS),
    *(
        Kernel("summarise", block, m, "sm_90", chunked=True)
        for block, m in product(KINDS, (1, 4, 16))
    ),
    *(
        Kernel("join", True, m, target, chunked=True, options=way)
        for m, target, way in product((4, 16), TARGETS, ((), ("adjoint",)))
    ),
]
FAST = {
    str(Kernel(sweep, block, 2, "sm_90"))
    for sweep, block in product(("forward", "backward"), (True, False))
}
# Registers, and instructions per gate, on sm_90 with bfloat16 gates.
LIMITS = {
    "forward": (64, 18),
    "backward": (96, 34),
}


def read_table() -> dict[str, Resources]:
    return {name: Resources(**row) for name, row in json.loads(TABLE.read_text()).items()}


def parameters():
    return [
        pytest.param(k, id=str(k), marks=() if str(k) in FAST else pytest.mark.slow)
        for k in (*HEADLINE, *OTHERS)
    ]


@pytest.mark.parametrize("kernel", parameters())
def test_within_budget(kernel):
    budget, found = read_table()[str(kernel)], measure(kernel)
    assert found.spills == 0
    assert found.shared == 0
    assert found.registers <= budget.registers, (
        f"{kernel}: {found.registers} registers, {budget.registers} before"
    )
    assert found.instructions <= budget.instructions, (
        f"{kernel}: {found.instructions} instructions per gate, {budget.instructions} before"
    )


@pytest.mark.parametrize("sweep", LIMITS)
def test_the_largest_blocks_need_no_spills(sweep):
    """With m = 64 they spilled; companion scans end at 16, which the budget has."""
    assert measure(Kernel(sweep, True, MAX_SIZE[Recurrence.BLOCK], "sm_80")).spills == 0
    assert MAX_SIZE[Recurrence.COMPANION] == max(SIZES)


@pytest.mark.parametrize("sweep", LIMITS)
def test_the_budget_keeps_the_limits(sweep):
    table, (registers, instructions) = read_table(), LIMITS[sweep]
    for block, m in product((True, False), (1, 2, 4, 8, 16)):
        row = table[str(Kernel(sweep, block, m, "sm_90"))]
        assert row.registers <= registers
        assert row.instructions <= instructions


def test_the_table_has_no_spills_and_no_shared_memory():
    assert all(row.spills == row.shared == 0 for row in read_table().values())
    assert set(read_table()) == {str(kernel) for kernel in (*HEADLINE, *OTHERS)}


def test_every_optional_tensor_is_compiled_in_some_kernel():
    compiled = {(kernel.sweep, option) for kernel in OTHERS for option in kernel.options}
    assert {(sweep, name) for sweep, names in ABSENT.items() for name in names} <= compiled


if __name__ == "__main__":
    rows = {str(kernel): asdict(measure(kernel)) for kernel in (*HEADLINE, *OTHERS)}
    TABLE.write_text(
        "{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
        + "\n}\n"
    )
