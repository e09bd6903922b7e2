"""The live table of cells that run, for `statemix sweep` and `statemix demo`."""

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table

from statemix.commands.views.console import make_console
from statemix.config.task import RunConfig
from statemix.sweep.kinds import Config

__all__ = ["Board", "options_of", "task_of"]

_COLUMNS = ("run", "task", "mixer", "seed", "lr", "progress")
_ENDED = ("done", "failed", "elsewhere")


class Board:
    """Shows the messages of a sweep on stderr; as a context, it disappears at the end."""

    def __init__(self, configs: list[Config]) -> None:
        self.configs = {config.id: config for config in configs}
        self.started = time.perf_counter()
        self.running: dict[str, dict[str, Any]] = {}
        self.ended = 0
        self.failures: list[str] = []
        self.console = make_console(stderr=True)
        self.live = Live(self.table(), console=self.console, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Board":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()
        for failure in self.failures:
            self.console.print(f"failed: {failure}", style="red", soft_wrap=True)

    def observe(self, kind: str, id_: str, content: Any) -> None:
        """Show one message of a sweep."""
        if kind == "report":
            self.running[id_] = content
        elif kind == "busy":
            self.console.print(f"another process runs {id_}: waiting for it")
        elif kind == "warning":
            self.console.print(content, style="yellow", soft_wrap=True)
        elif kind in _ENDED:
            self.running.pop(id_, None)
            self.ended += 1
        if kind == "failed":
            self.failures.append(f"{id_} ({_describe(self.configs[id_])}): {content}")
        self.live.update(self.table())

    def table(self) -> Group:
        """Counts, estimated time left, and a row for each cell that is running."""
        elapsed = time.perf_counter() - self.started
        left = "time left not known yet"
        if self.ended:
            left = f"{elapsed / self.ended * (len(self.configs) - self.ended):.0f} s left"
        head = (
            f"{self.ended} of {len(self.configs)} runs ended, {len(self.failures)} failed, "
            f"{elapsed:.0f} s, {left}"
        )
        table = Table(*_COLUMNS, box=None)
        for id_, report in self.running.items():
            table.add_row(*_row(self.configs[id_], report))
        return Group(head, table)


def _describe(config: Config) -> str:
    return f"{task_of(config)}, {config.model.mixer}, seed {config.seed}"


def task_of(config: Config) -> str:
    """The task of a cell, or the text that its language model reads."""
    return config.task if isinstance(config, RunConfig) else f"text {config.data[:8]}"


def options_of(options: Mapping[str, Any]) -> str:
    """Options of a mixer as key=value."""
    return " ".join(f"{key}={value}" for key, value in options.items())


def _row(config: Config, report: dict[str, Any]) -> list[str]:
    """The cells of the table for a running cell of the sweep."""
    return [
        config.id[:8],
        task_of(config),
        f"{config.model.mixer} {options_of(config.model.options)}",
        str(config.seed),
        f"{config.lr:g}",
        _progress(report),
    ]


def _progress(report: dict[str, Any]) -> str:
    """The metrics of an epoch of a task, or of a step or a validation of a language model."""
    if "epoch" in report:
        accuracies = f"training {report['train']:.3f}, validation {report['validation']:.3f}"
        return f"epoch {report['epoch']}, {accuracies}"
    name = "loss" if "loss" in report else "perplexity"
    return f"step {report['step']}, {name} {report[name]:.3f}"
