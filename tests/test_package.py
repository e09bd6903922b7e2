"""The command line, the registry of kernels, and the cost of imports."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from statemix.cli import main
from statemix.kernels.cpu import library as cpu
from statemix.ops.dispatch import registry


def python(code: str, *, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **(env or {})},
    )
    return result.stdout


def test_help_does_not_import_torch():
    code = """
import sys
from pathlib import Path
from statemix.cli import main
try:
    main(["--help"])
except SystemExit as end:
    assert end.code == 0
assert "torch" not in sys.modules, "torch was imported to print help"
assert "statemix.ops" not in sys.modules
"""
    printed = python(code)
    assert "info" in printed
    assert "bench" in printed


def test_an_unknown_command_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as end:
        main(["inof"])
    assert end.value.code == 2
    printed = "".join(capsys.readouterr())
    assert "inof" in printed
    assert "info" in printed


def test_info(capsys):
    main(["info"])
    printed = capsys.readouterr().out
    for word in (
        "torch",
        torch.__version__,
        "gated_block_scan",
        "intra-op threads",
        "CPU library",
        "m up to 32" if find_spec("triton") else "Triton is not installed",
    ):
        assert word in printed


def test_info_json(capsys):
    main(["info", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["versions"]["torch"] == torch.__version__
    assert report["threads"]["intra-op"] == torch.get_num_threads()
    ops = {kernel["op"] for kernel in report["kernels"]}
    assert ops == set(registry.OPS)
    assert all(kernel["kernel"] and kernel["why"] for kernel in report["kernels"])


def test_version():
    from statemix import __version__

    result = subprocess.run(
        [sys.executable, "-m", "statemix", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"statemix {__version__}\n"


def test_kernels_can_be_disabled():
    code = "from statemix.kernels.cpu.library import load; print(load().reason)"
    assert python(code, env={"STATEMIX_KERNELS": "off"}) == "switched off by STATEMIX_KERNELS=off\n"
    code = """
from statemix.kernels.cpu.library import load
try:
    load()
except ValueError as error:
    print(error)
"""
    assert (
        python(code, env={"STATEMIX_KERNELS": "fast"})
        == "The environment variable STATEMIX_KERNELS must be 'on' or 'off', got 'fast'.\n"
    )


def test_a_library_without_a_file_is_missing(monkeypatch):
    monkeypatch.setattr(cpu, "_find", lambda: None)
    cpu.load.cache_clear()
    try:
        library = cpu.load()
        assert isinstance(library, cpu.Missing)
        assert "C++ compiler" in library.reason
    finally:
        cpu.load.cache_clear()


@pytest.mark.parametrize("content", [b"", b"not a library"])
def test_a_damaged_library_is_missing(monkeypatch, tmp_path, content):
    path = tmp_path / "libstatemix_cpu.so"
    path.write_bytes(content)
    monkeypatch.setattr(cpu, "_find", lambda: path)
    cpu.load.cache_clear()
    try:
        library = cpu.load()
        assert isinstance(library, cpu.Missing)
        assert "does not load" in library.reason
    finally:
        cpu.load.cache_clear()


def test_the_library_reports_its_instruction_set():
    library = cpu.load()
    if isinstance(library, cpu.Missing):
        pytest.skip(f"no compiled library: {library.reason}")
    assert library.instruction_set in ("avx512", "avx2", "generic")


@pytest.fixture
def scratch_op(monkeypatch):
    """Define an op for the test, so that the real ops keep their plain bodies."""
    monkeypatch.setattr(registry, "OPS", list(registry.OPS))
    monkeypatch.setattr(registry, "KERNELS", dict(registry.KERNELS))
    name = "scratch_for_tests"
    if not hasattr(torch.ops.statemix, name):
        registry.define_op(name, "(Tensor x) -> Tensor", lambda x: x + 1, torch.empty_like)
    registry.OPS.append(name)
    return name


def test_a_kernel_replaces_the_plain_body(scratch_op):
    op = getattr(torch.ops.statemix, scratch_op)
    assert op(torch.zeros(2)).tolist() == [1.0, 1.0]
    registry.register_kernel(scratch_op, "cpu", lambda x: x + 2, "a test's kernel")
    assert op(torch.zeros(2)).tolist() == [2.0, 2.0]
    (choice,) = [c for c in registry.kernel_choices() if c.op == scratch_op and c.device == "cpu"]
    assert choice.kernel == "a test's kernel"


def test_register_kernel_errors():
    with pytest.raises(
        ValueError, match="Unknown op 'blok_scan'. Available: block_scan, block_scan_backward"
    ):
        registry.register_kernel("blok_scan", "cpu", lambda: None, "none")
    with pytest.raises(ValueError, match="Unknown device 'tpu'. Available: cpu, cuda"):
        registry.register_kernel("block_scan", "tpu", lambda: None, "none")


def test_unwritten_memory_is_nan():
    """The fixture `poisoned_memory` works, which exposes unwritten outputs in all tests."""
    assert torch.empty(3).isnan().all()
    assert torch.zeros(1).new_empty(3).isnan().all()
    assert torch.empty_like(torch.zeros(3)).isnan().all()


def test_the_readme_runs():
    """The example gives the shapes in its comments."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    scope: dict = {}
    exec(blocks[0], scope)
    assert (scope["y"].shape, scope["state"].shape, scope["y_t"].shape) == (
        (8, 256, 128),
        (8, 32, 4),
        (8, 128),
    )
