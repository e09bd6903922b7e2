"""Reports of a language-model run: metrics on the way, and the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statemix.config.lm import LMRunConfig, run_config_from_dict
from statemix.files.json_files import read_object
from statemix.runs.layout import CONFIG, METRICS
from statemix.runs.metrics import Metrics, read_metrics

__all__ = ["LMResult", "StepReport", "ValidationReport", "read_config", "resume_metrics"]


@dataclass(frozen=True)
class StepReport:
    """Metrics of a step: a line of metrics.jsonl."""

    step: int
    loss: float
    lr: float
    gradient: float
    tokens: int
    tokens_per_second: float
    utilisation: float
    seconds: float


@dataclass(frozen=True)
class ValidationReport:
    """Metrics of a validation: a line of metrics.jsonl."""

    step: int
    validation_loss: float
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True)
class LMResult:
    """The result of a finished run."""

    id: str
    steps: int
    tokens: int
    parameters: int
    loss: float
    validation_loss: float
    perplexity: float
    bits_per_byte: float
    seconds: float


def read_config(directory: Path) -> LMRunConfig:
    """The config of the run in `directory`."""
    try:
        return run_config_from_dict(read_object(directory / CONFIG, "Choose another --out."))
    except ValueError as error:
        raise ValueError(
            f"{directory / CONFIG} is damaged, or not the config of a run: {error}"
        ) from error


def resume_metrics(
    directory: Path, step: int, steps: int, *, writes: bool
) -> tuple[Metrics, float]:
    """The metrics up to the checkpoint of `step`, and the loss of the last step among them.

    The validation after the last of all `steps` is repeated, so its line is left out.
    """
    lines = [line for line in read_metrics(directory / METRICS) if _is_before(line, step, steps)]
    losses = [line["loss"] for line in lines if _is_number(line.get("loss"))]
    metrics = Metrics(directory / METRICS, lines, writes=writes)
    return metrics, losses[-1] if losses else float("nan")


def _is_before(line: dict[str, Any], step: int, steps: int) -> bool:
    at = line.get("step")
    return at is not None and _is_number(at) and at <= step and ("loss" in line or at < steps)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
