"""`statemix lm presets` and `statemix lm info`: sizes and costs of language models."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from statemix.commands.check import check_positive

__all__ = ["LMInfo", "Presets"]


@dataclass(frozen=True)
class Presets:
    """List the named models with their numbers of parameters, FLOPs and states."""

    length: int = 256
    """Length of the sequences for which FLOPs are counted; only attention depends on it."""

    def run(self) -> None:
        check_positive("length", self.length)
        from statemix.commands.views.lm_presets import print_presets

        print_presets(self.length)


@dataclass(frozen=True)
class LMInfo:
    """Show the parameters, FLOPs per token, states and layers of a model.

    Examples: `statemix lm info 2m-hybrid`, `statemix lm info runs/mine/final`.
    """

    model: tyro.conf.Positional[str]
    """A name from `statemix lm presets`, or a model's directory: final/ of a run."""
    length: int = 256
    """Length of the sequences for which FLOPs are counted; only attention depends on it."""
    files: tuple[Path, ...] = ()
    """Python files to import first, which register your own mixers."""

    def run(self) -> None:
        check_positive("length", self.length)
        from statemix.commands.views.lm_presets import print_info
        from statemix.runs.plugins import load_files

        load_files(self.files)
        print_info(self.model, self.length)
