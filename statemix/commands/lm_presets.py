"""`statemix lm presets`: the language models that have a name."""

from dataclasses import dataclass

__all__ = ["Presets"]


@dataclass(frozen=True)
class Presets:
    """List the models that have a name, with their parameters and states."""

    def run(self) -> None:
        from statemix.commands.views.lm_presets import print_presets

        print_presets()
