"""Build the source distribution and all wheels, and check them.

    python tools/wheels.py build [PLATFORM ..]   all files of a release, into dist/
    python tools/wheels.py check                 tags, contents, sizes, metadata, linked libraries
    python tools/wheels.py install               test this machine's wheel without a compiler
    python tools/wheels.py emulate               run the aarch64 library on this machine's vectors

The library needs neither Python nor torch, so Zig's C++ compiler builds it for all platforms here.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from platform import machine

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheels"
LIMIT = 2_000_000  # bytes of a wheel
LIBRARIES = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2"}
LIBRARIES |= {"ld-linux-aarch64.so.1"}
TESTS = ("test_library.py", "test_package.py", "test_cpu_kernels.py", "test_block.py")


@dataclass(frozen=True)
class Platform:
    """A platform that gets a wheel with the compiled library."""

    tag: str
    target: str  # in Zig's words
    system: str  # in CMake's words
    processor: str
    library: str


PLATFORMS = {
    "linux-x86_64": Platform(
        "manylinux_2_28_x86_64", "x86_64-linux-gnu.2.28", "Linux", "x86_64", "libstatemix_cpu.so"
    ),
    "linux-aarch64": Platform(
        "manylinux_2_28_aarch64", "aarch64-linux-gnu.2.28", "Linux", "aarch64", "libstatemix_cpu.so"
    ),
    "macos-arm64": Platform(
        "macosx_11_0_arm64", "aarch64-macos.11.0", "Darwin", "arm64", "libstatemix_cpu.dylib"
    ),
}


def build(names: list[str]) -> None:
    """Write the source distribution, the pure wheel and the wheels of `names` to dist/."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    shutil.rmtree(WORK / "source", ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK / "source", filter="data")
    (source,) = (WORK / "source").iterdir()
    build_wheel(source, "wheel.cmake=false", tag="any")
    for name in names:
        build_wheel(source, *cross_settings(name), tag=PLATFORMS[name].tag)


def build_wheel(source: Path, *settings: str, tag: str) -> None:
    """Build one wheel from the unpacked source distribution, and give it the platform tag."""
    out = WORK / "new"
    shutil.rmtree(out, ignore_errors=True)
    options = [f"--config-setting={setting}" for setting in settings]
    run(sys.executable, "-m", "build", "--wheel", "--outdir", out, *options, source)
    (wheel,) = out.glob("*.whl")
    run(sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, wheel)
    (wheel,) = out.glob("*.whl")
    shutil.copy(wheel, DIST)


def cross_settings(name: str) -> list[str]:
    """The settings of scikit-build-core that compile for another platform."""
    platform = PLATFORMS[name]
    shutil.rmtree(WORK / name, ignore_errors=True)  # files of an archive have no time of change
    compiler = compiler_script(platform.target)
    defines = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "tools" / "zig.cmake",
        "ZIG_COMPILER": compiler,
        "ZIG_SYSTEM": platform.system,
        "ZIG_PROCESSOR": platform.processor,
    }
    settings = [f"cmake.define.{key}={value}" for key, value in defines.items()]
    return [*settings, f"build-dir={WORK / name}"]


def compiler_script(target: str) -> Path:
    """A script that calls Zig's C++ compiler for `target`: CMake wants one file."""
    script = WORK / f"c++-{target}"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m ziglang c++ -target {target} "$@"\n')
    script.chmod(0o755)
    return script


def check() -> None:
    """Check every file in dist/."""
    files = sorted(DIST.iterdir())
    wheels = [file for file in files if file.suffix == ".whl"]
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    run(sys.executable, "-m", "check_wheel_contents", *wheels)
    for wheel in wheels:
        check_wheel(wheel)
    (sdist,) = DIST.glob("*.tar.gz")
    check_sdist(sdist)


def check_wheel(wheel: Path) -> None:
    """Check size and contents, and on Linux the symbols and libraries that the library needs."""
    tag = wheel.stem.rsplit("-", 1)[1]
    names = zipfile.ZipFile(wheel).namelist()
    found = [Path(name).name for name in names if "libstatemix_cpu" in name]
    expected = [platform.library for platform in PLATFORMS.values() if platform.tag == tag]
    require(found == expected, f"{wheel.name} must contain {expected}, got {found}")
    needed = {
        "statemix/experiments/table_groups.py",
        "statemix/examples/models/mod_arith/certificate.json",
    }
    missing = needed.difference(names)
    require(not missing, f"{wheel.name} must contain {sorted(missing)}")
    foreign = [name for name in names if re.search(r"^(tests|tools|docs)/|\.[ch]pp$", name)]
    require(not foreign, f"{wheel.name} must contain the package only, got {foreign}")
    size = wheel.stat().st_size
    require(size <= LIMIT, f"{wheel.name} must have at most {LIMIT:,} bytes, got {size:,}")
    audited = audit(wheel) if "linux" in tag else "no libraries to audit"
    print(f"{wheel.name}: {size:,} bytes; {audited}", flush=True)


def audit(wheel: Path) -> str:
    """The oldest platform that can run the library, according to auditwheel."""
    said = " ".join(output(sys.executable, "-m", "auditwheel", "show", wheel).split())
    tags = re.findall(r"manylinux_2_(\d+)_", said.split("constrains the platform tag to")[-1])
    require(bool(tags) and int(tags[0]) <= 28, f"auditwheel must allow manylinux_2_28: {said}")
    needed = linked_libraries(wheel)
    foreign = needed - LIBRARIES
    require(not foreign, f"{wheel.name} must need the C library only, got {foreign}")
    return f"auditwheel: manylinux_2_{tags[0]}; needs {', '.join(sorted(needed))}"


def linked_libraries(wheel: Path) -> set[str]:
    """The shared libraries that the compiled library needs."""
    from elftools.elf.elffile import ELFFile  # auditwheel depends on it

    with library_of(wheel).open("rb") as file:
        dynamic = ELFFile(file).get_section_by_name(".dynamic")
        return {tag.needed for tag in dynamic.iter_tags() if tag.entry.d_tag == "DT_NEEDED"}


def library_of(wheel: Path) -> Path:
    """The compiled library, unpacked from its wheel."""
    place = WORK / "unpacked" / wheel.stem
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if "libstatemix_cpu" in name)
        return Path(archive.extract(name, place))


def check_sdist(sdist: Path) -> None:
    """The source distribution contains what a build needs, and the ledger for `report`."""
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    needed = {"CMakeLists.txt", "statemix/kernels/cpu/library.cpp", "results/ledger.jsonl"}
    require(needed <= names, f"{sdist.name} must contain {sorted(needed - names)}")
    print(f"{sdist.name}: {sdist.stat().st_size:,} bytes", flush=True)


def install() -> None:
    """Install this machine's wheel into a clean environment without a compiler, and test it."""
    pattern = "*macosx*.whl" if sys.platform == "darwin" else f"*manylinux*{machine()}.whl"
    (wheel,) = DIST.glob(pattern)
    environment = clean_environment(wheel)
    for name in ("cc", "c++", "gcc", "g++", "clang++", "cmake"):
        found = shutil.which(name, path=environment["PATH"])
        require(found is None, f"the environment must have no compiler, found {found}")
    python = WORK / "clean" / "bin" / "python"
    place = WORK / "elsewhere"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(ROOT / "tests", place / "tests")
    run(python, "-W", "error", "-m", "statemix", "info", cwd=place, env=environment)
    tests = [f"tests/{name}" for name in TESTS]
    config = ["-c", os.devnull, "--rootdir", ".", "--deselect"]
    config += ["tests/test_package.py::test_the_readme_runs", "-p", "no:cacheprovider"]
    run(python, "-m", "pytest", "-q", *config, *tests, cwd=place, env=environment)
    install_from_source(python, place, environment)


def install_from_source(python: Path, place: Path, environment: dict[str, str]) -> None:
    """Install the source distribution without a compiler; statemix must warn that it did."""
    (sdist,) = DIST.glob("*.tar.gz")
    again = ("--force-reinstall", "--no-deps", "--no-cache-dir")
    run(python, "-m", "pip", "install", "--quiet", *again, sdist, env=environment)
    words = [str(python), "-c", "import statemix.ops"]
    said = subprocess.run(
        words, check=True, capture_output=True, text=True, cwd=place, env=environment
    )
    warned = said.stderr.count("this installation was built without a C++ compiler")
    require(warned == 1, f"one warning must say that there was no compiler, got: {said.stderr}")
    print("from source without a compiler:", said.stderr.splitlines()[0], flush=True)


def clean_environment(wheel: Path) -> dict[str, str]:
    """A new virtual environment with the wheel and pytest; the variables to run it with."""
    clean = WORK / "clean"
    shutil.rmtree(clean, ignore_errors=True)
    run(sys.executable, "-m", "venv", clean)
    pip = [clean / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint"]
    pip += [ROOT / "constraints.txt", "pytest", "hypothesis", "beartype", wheel]
    environment = {**os.environ, "PATH": str(clean / "bin"), "OMP_NUM_THREADS": "1"}
    run(*pip, env=environment)
    return environment


def emulate() -> None:
    """Run the aarch64 library on vectors that this machine's library wrote."""
    for tool in ("qemu-aarch64-static", "aarch64-linux-gnu-objdump"):
        require(
            shutil.which(tool) is not None,
            f"{tool} is missing: install qemu-user-static, binutils-aarch64-linux-gnu and "
            "libc6-arm64-cross",
        )
    (wheel,) = DIST.glob("*manylinux*_aarch64.whl")
    library = library_of(wheel)
    assembly = output("aarch64-linux-gnu-objdump", "-d", library)
    neon = len(re.findall(r"\bfml[as]\s+v\d+\.4s", assembly))
    require(neon > 1000, f"the library must multiply and add in NEON registers, got {neon}")
    vectors = WORK / "vectors.bin"
    run(sys.executable, ROOT / "tools" / "write_vectors.py", vectors)
    program = WORK / "run_vectors"
    source = ROOT / "tools" / "run_vectors.cpp"
    compiler = compiler_script(PLATFORMS["linux-aarch64"].target)
    run(compiler, "-O1", "-std=c++17", "-I", ROOT, source, "-o", program)
    print(f"{neon} multiply-adds of four lanes in the disassembly", flush=True)
    run("qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", program, library, vectors)


def require(holds: bool, message: str) -> None:
    """Stop with `message` unless `holds`."""
    if not holds:
        raise SystemExit(f"wheels: {message}.")


def run(*command: object, **options: object) -> None:
    """Run a command; stop if it fails."""
    subprocess.run([str(word) for word in command], check=True, **options)


def output(*command: object) -> str:
    """What a command prints."""
    words = [str(word) for word in command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("build", "check", "install", "emulate"))
    parser.add_argument("platforms", nargs="*", default=list(PLATFORMS), help="only for build")
    arguments = parser.parse_args()
    if arguments.what == "build":
        build(arguments.platforms)
    else:
        {"check": check, "install": install, "emulate": emulate}[arguments.what]()


if __name__ == "__main__":
    main()
