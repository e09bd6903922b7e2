"""The live table of cells that run, for `statemix sweep` and `statemix demo`."""

import time
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table

from statemix.commands.views.console import make_console
from statemix.train import RunConfig

__all__ = ["Board"]

_COLUMNS = ("run", "task", "mixer", "seed", "lr", "epoch", "training", "validation")
_ENDED = ("done", "failed", "elsewhere")


class Board:
    """Shows the messages of a sweep on stderr; as a context, it disappears at the end."""

    def __init__(self, configs: list[RunConfig]) -> None:
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
        if kind == "epoch":
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


def _describe(config: RunConfig) -> str:
    return f"{config.task}, {config.model.mixer}, seed {config.seed}"


def _row(config: RunConfig, report: dict[str, Any]) -> list[str]:
    """What the table shows of a running cell."""
    options = " ".join(f"{key}={value}" for key, value in config.model.options.items())
    accuracies = [f"{report[key]:.3f}" for key in ("train", "validation")]
    return [
        config.id[:8],
        config.task,
        f"{config.model.mixer} {options}",
        str(config.seed),
        f"{config.lr:g}",
        str(report["epoch"]),
        *accuracies,
    ]
