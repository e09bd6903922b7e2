"""What `statemix lm presets` prints: one table for each model size."""

from itertools import groupby

import torch
from rich.box import SIMPLE
from rich.table import Column, Table

from statemix.commands.views.console import make_console
from statemix.layers import build_mixer
from statemix.models.lm import count_parameters
from statemix.models.presets import PRESETS

__all__ = ["print_presets"]


def print_presets() -> None:
    """Every preset with its parameters, its states per layer and its mixer's options."""
    console = make_console()
    for size, names in groupby(PRESETS, lambda name: name.partition("-")[0]):
        numbers = (Column(title, justify="right") for title in ("parameters", "states per layer"))
        table = Table("preset", *numbers, "options", box=SIMPLE)
        for name in names:
            config = PRESETS[name]
            with torch.device("meta"):
                states = build_mixer(config.mixer, config.width, config.options).state_size
            options = ", ".join(f"{key}={value}" for key, value in config.options.items())
            table.add_row(name, f"{count_parameters(config):,}", f"{states:,}", options)
        table.title = (
            f"{size.upper()}: width {config.width}, {config.layers} layers, "
            f"MLP {config.mlp_width}, vocabulary {config.vocab:,}"
        )
        console.print(table)
