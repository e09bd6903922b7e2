"""Helpers for tests that train language models: metrics of runs, and options of a tiny model."""

import json
from pathlib import Path
from typing import Any


def metrics(directory: Path) -> list[dict[str, Any]]:
    """Read the lines of a run's metrics.jsonl."""
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def losses(directory: Path) -> list[float]:
    """Read the training losses of a run, one for each step."""
    return [line["loss"] for line in metrics(directory) if "loss" in line]


def tiny_model(*, batch: int) -> list[str]:
    """Return options of `statemix lm train` for a tiny model and short sequences."""
    sizes = {"width": 16, "layers": 1, "length": 16, "batch": batch, "peak-tflops": 1}
    options = [word for name, size in sizes.items() for word in (f"--{name}", str(size))]
    return ["--preset", "180k-bdlru-m4", *options]
