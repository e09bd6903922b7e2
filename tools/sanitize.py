"""Build the C++ library with sanitizers and call every kernel: `python tools/sanitize.py`.

AddressSanitizer and UndefinedBehaviourSanitizer watch one build: an access outside an allocation, a
use after free, a signed overflow, a misaligned or out-of-range access ends the program. The build
goes to build/sanitize/, and the installed library is not touched.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "sanitize"
ISAS = {"avx2": "avx2", "avx512": "avx512dq"}
# Loads the library with sanitizers in place of the installed one.
CALLS = """
import runpy, sys
from pathlib import Path
from statemix.kernels.cpu import library
library._find = lambda: Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])
runpy.run_path(sys.argv[2] + "/every_kernel.py", run_name="__main__")
"""
# Writes behind the end of an array of torch, which a build with sanitizers must notice.
MISTAKE = """
import ctypes, sys
import torch
src, dst = torch.zeros(64), torch.zeros(8)
numbers = [ctypes.c_int64(n) for n in (1, 2, 4)]
places = [ctypes.c_void_p(x.data_ptr()) for x in (src, dst)]
move = ctypes.CDLL(sys.argv[1]).statemix_move
move(places[0], numbers[0], places[1], *numbers[1:])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--isa", nargs="+", default=instruction_sets())
    options = parser.parse_args()
    library = build(options.jobs)
    check_that_mistakes_are_noticed(library)
    for isa in options.isa:
        print(f"instruction set {isa}", flush=True)
        call_kernels(library, isa)


def build(jobs: int) -> Path:
    """Configure and build; return the library."""
    BUILD.mkdir(parents=True, exist_ok=True)
    run(["cmake", "-S", str(ROOT), "-B", str(BUILD), "-DSTATEMIX_SANITIZE=ON"])
    run(["cmake", "--build", str(BUILD), "--parallel", str(jobs)])
    return BUILD / "libstatemix_cpu.so"


def instruction_sets() -> list[str]:
    """Those that this processor has."""
    flags = Path("/proc/cpuinfo").read_text().split()
    return ["generic", *(name for name, flag in ISAS.items() if flag in flags)]


def check_that_mistakes_are_noticed(library: Path) -> None:
    """Exit unless AddressSanitizer stops a program that writes out of bounds."""
    command = [sys.executable, "-c", MISTAKE, str(library)]
    environment = watched("generic")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if not done.returncode or "heap-buffer-overflow" not in done.stderr:
        sys.exit(f"AddressSanitizer did not notice a write out of bounds: {done.stderr}")


def call_kernels(library: Path, isa: str) -> None:
    """Run tests/every_kernel.py with the built library."""
    command = [sys.executable, "-c", CALLS, str(library), str(ROOT / "tests")]
    run(command, watched(isa))


def watched(isa: str) -> dict[str, str]:
    """The environment of a process that loads the library with sanitizers."""
    preload = [output(["gcc", f"-print-file-name=lib{name}.so"]) for name in ("asan", "stdc++")]
    return {
        **os.environ,
        "LD_PRELOAD": " ".join(preload),
        "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "STATEMIX_ISA": isa,
        "STATEMIX_POOL": "off",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",  # threads that wait for work do not compute
    }


def output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a command; exit with its code if it fails."""
    code = subprocess.run(command, env=environment, check=False).returncode
    if code:
        sys.exit(f"{command[0]} ended with {code}.")


if __name__ == "__main__":
    main()
