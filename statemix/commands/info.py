"""`statemix info`: versions, threads and kernels on this machine."""

from dataclasses import dataclass
from typing import Annotated

import tyro

__all__ = ["Info"]


@dataclass(frozen=True)
class Info:
    """Show versions, threads, and which kernel each scan uses on this machine and why."""

    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print one JSON object instead of tables."""

    def run(self) -> None:
        from statemix.commands.views.info import print_info

        print_info(as_json=self.json)
