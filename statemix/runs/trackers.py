"""Sending metrics to a tracker as well: wandb, tensorboard or trackio, whichever is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Identified(Protocol):
    """A config that has an id."""

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits."""

    def to_json(self) -> str:
        """One line."""


class Tracker(Protocol):
    """Where metrics go."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Send the metrics of one step."""

    def finish(self) -> None:
        """Send what is left."""


class NoTracker:
    """Metrics stay in the run's directory."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Nothing to send."""

    def finish(self) -> None:
        """Nothing is left."""


class RunTracker:
    """wandb, or trackio, which speaks the same language."""

    def __init__(self, module: Any, config: Identified, directory: Path) -> None:
        self.module = module
        module.init(
            project="statemix", name=config.id, config={"config": config.to_json()}, resume="allow"
        )

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Send the metrics of one step."""
        self.module.log(metrics, step=step)

    def finish(self) -> None:
        """Send what is left."""
        self.module.finish()


class TensorBoardTracker:
    """Event files in the run's directory."""

    def __init__(self, config: Identified, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Send the metrics of one step."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Send what is left."""
        self.writer.close()


def make_wandb(config: Identified, directory: Path) -> Tracker:
    import wandb

    return RunTracker(wandb, config, directory)


def make_trackio(config: Identified, directory: Path) -> Tracker:
    import trackio

    return RunTracker(trackio, config, directory)


TRACKERS: dict[str, Callable[[Identified, Path], Tracker]] = {
    "none": lambda config, directory: NoTracker(),
    "wandb": make_wandb,
    "tensorboard": TensorBoardTracker,
    "trackio": make_trackio,
}


def open_tracker(name: str, config: Identified, directory: Path) -> Tracker:
    """The tracker called `name`."""
    if name not in TRACKERS:
        raise ValueError(f"Unknown tracker {name!r}. Available: {', '.join(TRACKERS)}.")
    try:
        return TRACKERS[name](config, directory)
    except ImportError as error:
        raise ValueError(
            f"The tracker {name!r} is not installed ({error}). Install it with: pip install 'statemix[track]'"
        ) from error
