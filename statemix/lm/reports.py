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
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{directory / CONFIG} is damaged: {error}.") from error


def read_result(directory: Path, config: LMRunConfig) -> LMResult | None:
    """What the run reached, if it is finished."""
    path = directory / RESULT
    if not path.is_file():
        return None
    result = LMResult(**json.loads(path.read_text()))
    if result.id != config.id:
        raise ValueError(f"{directory} holds the result of another run (id {result.id}, this one is {config.id}). Choose another --out.")
    return result


class Metrics:
    """The lines of metrics.jsonl; those after the step that a run goes on from are written anew."""

    def __init__(self, path: Path, *, writes: bool, step: int) -> None:
        self.path, self.writes = path, writes
        lines = path.read_text().splitlines() if path.is_file() else []
        self.lines = [line for line in lines if is_before(line, step)]

    def append(self, report: StepReport | ValidationReport) -> None:
        self.lines.append(json.dumps(asdict(report)))

    def flush(self) -> None:
        """Write all lines."""
        if self.writes:
            write_atomically(self.path, "".join(f"{line}\n" for line in self.lines).encode())

    def last_loss(self) -> float:
        """Of the last step."""
        losses: list[float] = [line["loss"] for line in map(json.loads, self.lines) if "loss" in line]
        return losses[-1]


def is_before(line: str, step: int) -> bool:
    """Whether a line of metrics is whole, and of a step up to `step`."""
    try:
        return bool(json.loads(line)["step"] <= step)
    except (json.JSONDecodeError, KeyError, TypeError):
        return False
