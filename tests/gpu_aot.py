"""Compile the sweeps ahead of time, without a GPU, and measure their use of resources."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from statemix.kernels.calls import Recurrence
from statemix.kernels.gpu import sweeps
from statemix.kernels.gpu.plan import make_plan
from statemix.kernels.gpu.scans import OPTIONS

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}
TYPES = {"float32": "*fp32", "bfloat16": "*bf16", "float16": "*fp16"}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
LOOKUPS = ("mask", "cu", "owner", "first")
STATES = ("h0", "final", "dfinal", "dh0", "ends", "entries")
# float32 if raw gates are normalised, whatever their dtype: statemix/ops/gated.py
BESIDE_GATES = (
    "x",
    "h",
    "dh",
    "dx",
    "lags",
)
ABSENT = {"forward": (), "backward": ("lags", "ends"), "summarise": (), "join": ()}


@dataclass(frozen=True)
class Kernel:
    """One sweep for one target, with its compile-time settings and its optional tensors."""

    sweep: str
    block: bool
    m: int
    target: str
    gate: str | None = "softmax"
    dtype: str = "bfloat16"
    chunked: bool = False
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        words = (
            self.sweep,
            "block" if self.block else "companion",
            f"m={self.m}",
            str(self.gate),
            self.dtype,
            self.target,
            *self.options,
        )
        return " ".join((*words, *["chunked"] * self.chunked))


@dataclass(frozen=True)
class Resources:
    """Resources of a compiled kernel.

    `instructions` counts those of the main loop, per lane and per entry of a row.
    """

    registers: int
    spills: int
    shared: int
    instructions: float


def constants(kernel: Kernel) -> dict[str, object]:
    """Collect every constexpr of the kernel, from the plan that the dispatch would choose."""
    plan = make_plan(
        1,
        1,
        1,
        kernel.m,
        recurrence=Recurrence.BLOCK if kernel.block else Recurrence.COMPANION,
        processors=1,
        warp=TARGETS[kernel.target].warp_size,
    )
    known = {
        "M": kernel.m,
        "BLOCK": kernel.block,
        "GATE": kernel.gate,
        "REVERSE": "reverse" in kernel.options,
        "CHUNKED": kernel.chunked,
        "LANES": plan.lanes,
        "STEPS": plan.steps,
        "COUNT": kernel.m + 1,
        "TOGETHER": plan.together,
        "ADJOINT": "adjoint" in kernel.options,
    }
    names = getattr(sweeps, kernel.sweep).arg_names
    absent = {
        name: None
        for name in (*LOOKUPS, *ABSENT[kernel.sweep])
        if name in names and name not in kernel.options
    }
    return {name: value for name, value in known.items() if name in names} | absent


def signature(kernel: Kernel, fixed: dict[str, object]) -> dict[str, str]:
    def kind(name: str) -> str:
        if name in fixed:
            return "constexpr"
        if name in sweeps.SIZES:
            return "i32"
        if name in LOOKUPS:
            return "*i1" if name == "mask" else "*i64"
        exact = name in STATES or (kernel.gate is not None and name in BESIDE_GATES)
        return "*fp32" if exact else TYPES[kernel.dtype]

    return {name: kind(name) for name in getattr(sweeps, kernel.sweep).arg_names}


def compile_kernel(kernel: Kernel):
    fixed = constants(kernel)
    source = ASTSource(
        fn=getattr(sweeps, kernel.sweep), signature=signature(kernel, fixed), constexprs=fixed
    )
    return triton.compile(source, target=TARGETS[kernel.target], options=OPTIONS), fixed


def measure(kernel: Kernel) -> Resources:
    compiled, fixed = compile_kernel(kernel)
    columns = kernel.m + (kernel.gate is not None)
    width = fixed["LANES"] // TARGETS[kernel.target].warp_size
    entries = fixed.get("STEPS", 1) * columns * width
    if kernel.target.startswith("gfx"):
        return amd(compiled, entries)
    return nvidia(compiled, entries)


def nvidia(compiled, entries: int) -> Resources:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(compiled.asm["cubin"])
        usage = subprocess.run(
            [TOOLS / "cuobjdump", "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        code = subprocess.run(
            [TOOLS / "nvdisasm", "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    numbers = {
        name: int(value) for name, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", usage)
    }
    label, jump = re.compile(r"^\s*(\.L\w+):"), re.compile(r"\bBRA\b.*`\((\.L\w+)\)")
    instruction = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?!.*\bNOP\b)")
    loop = longest_loop(code.splitlines(), label, jump, instruction)
    return Resources(
        numbers["REG"],
        numbers["STACK"] + numbers["LOCAL"],
        compiled.metadata.shared,
        round(loop / entries, 2),
    )


def amd(compiled, entries: int) -> Resources:
    code = compiled.asm["amdgcn"]
    numbers = {
        name: int(value)
        for name, value in re.findall(
            r"\.(vgpr_count|vgpr_spill_count|sgpr_spill_count):\s+(\d+)", code
        )
    }
    stack = int(re.search(r"\.private_segment_fixed_size:\s+(\d+)", code)[1])
    label, jump = re.compile(r"^(\.LBB\w+):"), re.compile(r"^\s+s_c?branch\S*\s+(\.LBB\w+)")
    loop = longest_loop(
        code.splitlines(), label, jump, re.compile(r"^\s+[vs]_|^\s+(global|flat|buffer|ds)_")
    )
    spills = numbers["vgpr_spill_count"] + numbers["sgpr_spill_count"] + stack
    return Resources(
        numbers["vgpr_count"], spills, compiled.metadata.shared, round(loop / entries, 2)
    )


def longest_loop(
    lines: list[str], label: re.Pattern[str], jump: re.Pattern[str], instruction: re.Pattern[str]
) -> int:
    """Count the instructions of the longest innermost loop, from a label to the jump back to it."""
    seen: dict[str, int] = {}
    loops: list[tuple[int, int]] = []
    for i, line in enumerate(lines):
        if found := label.search(line):
            seen[found[1]] = i
        if (found := jump.search(line)) and found[1] in seen:
            loops.append((seen[found[1]], i))
    inner = [
        (a, b)
        for a, b in loops
        if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)
    ]
    return max(
        (sum(bool(instruction.search(line)) for line in lines[a : b + 1]) for a, b in inner),
        default=0,
    )
