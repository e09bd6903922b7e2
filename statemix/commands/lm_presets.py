"""`statemix lm presets`: the named language models."""

from dataclasses import dataclass

__all__ = ["Presets"]


@dataclass(frozen=True)
class Presets:
    """List the named models with their numbers of parameters and states."""

    def run(self) -> None:
        from statemix.commands.views.lm_presets import print_presets

        print_presets()
