"""What a run tells on its way and at its end, and reading it back."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from statemix.lm.config import LMRunConfig, run_config_from_dict
from statemix.train.checkpoint import write_atomically

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"


@dataclass(frozen=True)
class StepReport:
    """What is known after a step: a line of metrics.jsonl."""

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
    """What is known after a validation: a line of metrics.jsonl."""

    step: int
    validation_loss: float
    perplexity: float
    bits_per_byte: float


@dataclass(frozen=True)
class LMResult:
    """What a finished run reports."""

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
        return run_config_from_dict(json.loads((directory / CONFIG).read_text()))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{directory / CONFIG} is damaged, or not a run's: {error}") from error


def read_result(directory: Path, config: LMRunConfig) -> LMResult | None:
    """What the run reached, if it is finished."""
    path = directory / RESULT
    if not path.is_file():
        return None
    try:
        result = LMResult(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged: {error}. Delete it to write it anew from the last checkpoint."
        ) from error
    if result.id != config.id:
        raise ValueError(
            f"{directory} holds the result of another run (id {result.id}, this one is {config.id}). Choose another --out."
        )
    return result


class Metrics:
    """The lines of metrics.jsonl; those after the step that a run goes on from are written anew."""

    def __init__(self, path: Path, *, writes: bool, step: int, steps: int) -> None:
        self.path, self.writes, self.last_loss = path, writes, float("nan")
        lines = (
            [line for line in path.read_text().splitlines() if is_before(line, step, steps)]
            if path.is_file()
            else []
        )
        for line in lines:
            self.last_loss = json.loads(line).get("loss", self.last_loss)
        if writes:
            write_atomically(path, "".join(f"{line}\n" for line in lines).encode())

    def append(self, report: StepReport | ValidationReport) -> None:
        """Add a line, to be read while the run goes on."""
        if isinstance(report, StepReport):
            self.last_loss = report.loss
        if self.writes:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(report)) + "\n")


def is_before(line: str, step: int, steps: int) -> bool:
    """Whether a line of metrics is whole and was written before the checkpoint of `step`; the validation after all `steps` was not."""
    try:
        report = json.loads(line)
        return bool(report["step"] <= step and ("loss" in report or report["step"] < steps))
    except (json.JSONDecodeError, KeyError, TypeError):
        return False
