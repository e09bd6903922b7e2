"""What this machine runs: versions, threads, and the kernel behind each scan."""

import json
import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version

import torch
from rich.console import Console
from rich.table import Table

from statemix import __version__
from statemix.ops.dispatch import gpu
from statemix.ops.dispatch.registry import KernelChoice, cpu_library, kernel_choices

PACKAGES = ("torch", "numpy", "safetensors", "triton", "transformers")


@dataclass(frozen=True)
class Report:
    """Everything that `statemix info` tells."""

    versions: dict[str, str]
    threads: dict[str, int]
    cpu_library: str
    gpu_kernels: str
    devices: list[str]
    kernels: list[KernelChoice]


def collect() -> Report:
    """Ask this machine; on a GPU, let the kernel of every scan check itself."""
    for i in range(torch.cuda.device_count()):
        gpu.check_all(torch.device("cuda", i))
    versions = {"statemix": __version__, "python": platform.python_version()}
    versions |= {package: installed_version(package) for package in PACKAGES}
    threads = {"intra-op": torch.get_num_threads(), "inter-op": torch.get_num_interop_threads()}
    gpus = [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    devices = ["cpu", *(gpus or ["no GPU that torch sees"])]
    return Report(versions, threads, cpu_library(), gpu.describe(), devices, kernel_choices())


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def print_info(*, as_json: bool) -> None:
    """Print the report as tables, or as one JSON object."""
    report = collect()
    if as_json:
        print(json.dumps(asdict(report), indent=2))
        return
    facts = Table(show_header=False, box=None)
    for name, value in report.versions.items():
        facts.add_row(name, value)
    for name, count in report.threads.items():
        facts.add_row(f"{name} threads", str(count))
    facts.add_row("devices", ", ".join(report.devices))
    facts.add_row("CPU library", report.cpu_library)
    facts.add_row("GPU kernels", report.gpu_kernels)
    kernels = Table("scan", "device", "computed by", "because")
    kernels.columns[0].no_wrap = True
    for choice in report.kernels:
        kernels.add_row(choice.op, choice.device, choice.kernel, choice.why)
    console = Console()
    console.print(facts)
    console.print(kernels)
