"""Experiment trackers that receive a run's metrics, too: wandb, TensorBoard or trackio."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from statemix.extras import install_command

__all__ = ["TRACKERS", "Identified", "Tracker", "open_tracker"]


class Identified(Protocol):
    """A config with an id."""

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits."""

    def to_json(self) -> str:
        """The config as one line of JSON."""


class Tracker(Protocol):
    """A receiver of metrics."""

    def log(self, step: int, metrics: dict[str, float]) -> None:
        """Send the metrics of one step."""

    def finish(self) -> None:
        """Send what is still buffered, and close the tracker."""


class _NoTracker:
    def log(self, step: int, metrics: dict[str, float]) -> None:
        pass

    def finish(self) -> None:
        pass


class _Wandb:
    """wandb, or trackio, which has the same interface."""

    def __init__(self, module: str, config: Identified) -> None:
        self.module: Any = import_module(module)
        about = {"config": config.to_json()}
        self.module.init(project="statemix", name=config.id, config=about, resume="allow")

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self.module.log(metrics, step=step)

    def finish(self) -> None:
        self.module.finish()


class _TensorBoard:
    """Event files in the run's directory."""

    def __init__(self, directory: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(directory / "tensorboard"))

    def log(self, step: int, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def finish(self) -> None:
        self.writer.close()


TRACKERS: dict[str, Callable[[Identified, Path], Tracker]] = {
    "none": lambda config, directory: _NoTracker(),
    "wandb": lambda config, directory: _Wandb("wandb", config),
    "tensorboard": lambda config, directory: _TensorBoard(directory),
    "trackio": lambda config, directory: _Wandb("trackio", config),
}


def open_tracker(name: str, config: Identified, directory: Path) -> Tracker:
    """The tracker called `name`."""
    if name not in TRACKERS:
        raise ValueError(f"Unknown tracker {name!r}. Available: {', '.join(TRACKERS)}.")
    try:
        return TRACKERS[name](config, directory)
    except ImportError as error:
        raise ValueError(
            f"The tracker {name!r} is not installed ({error}). "
            f"Install it with: {install_command('track')}"
        ) from error
