"""What `statemix info` prints: versions, threads, and the kernel behind each scan."""

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.table import Table

from statemix import __version__
from statemix.commands.views.console import make_console
from statemix.ops.dispatch import cpu, gpu
from statemix.ops.dispatch.linear import Choice, choices
from statemix.ops.dispatch.registry import KernelChoice, kernel_choices

__all__ = ["print_info"]

_PACKAGES = ("torch", "numpy", "safetensors", "triton", "transformers")


@dataclass(frozen=True)
class _Info:
    """Everything that `statemix info` reports."""

    versions: dict[str, str]
    threads: dict[str, int]
    cpu_library: str
    products: list[Choice]
    gpu_kernels: str
    devices: list[str]
    kernels: list[KernelChoice]


def print_info(*, as_json: bool) -> None:
    """Print the information as tables, or as one JSON object."""
    info = _collect()
    if as_json:
        print(json.dumps(asdict(info), indent=2))
        return
    kernels = Table("scan", "device", "computed by", "because")
    kernels.columns[0].no_wrap = True
    for choice in info.kernels:
        kernels.add_row(choice.op, choice.device, choice.kernel, choice.why)
    console = make_console()
    console.print(_facts(info))
    console.print(kernels)


def _facts(info: _Info) -> Table:
    """Everything but the kernels, one fact per row."""
    facts = Table(show_header=False, box=None)
    rows = {
        **info.versions,
        **{f"{name} threads": str(count) for name, count in info.threads.items()},
        "devices": ", ".join(info.devices),
        "CPU library": info.cpu_library,
        **{f"products {each.kind}": f"{each.library}: {each.why}" for each in info.products},
        "GPU kernels": info.gpu_kernels,
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    return facts


def _collect() -> _Info:
    """Query this machine; on a GPU, every kernel is checked first."""
    for i in range(torch.cuda.device_count()):
        gpu.check_all(torch.device("cuda", i))
    versions = {"statemix": __version__, "python": platform.python_version()}
    versions |= {package: _installed_version(package) for package in _PACKAGES}
    threads = {"intra-op": torch.get_num_threads(), "inter-op": torch.get_num_interop_threads()}
    gpus = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices = ["cpu", *(gpus or ["no GPU that torch sees"])]
    return _Info(
        versions, threads, cpu.describe(), choices(), gpu.describe(), devices, kernel_choices()
    )


def _installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
