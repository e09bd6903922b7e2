"""What `statemix lm presets` and `statemix lm info` print: sizes and costs of language models."""

from itertools import groupby
from pathlib import Path

import torch
from rich.box import SIMPLE
from rich.table import Column, Table

from statemix.commands.views.console import make_console, say
from statemix.config.model import LMConfig
from statemix.layers import build_mixer
from statemix.layers.baselines import Attention
from statemix.lm.measure import flops_per_token
from statemix.lm.saved import load_model
from statemix.models.lm import LanguageModel
from statemix.models.presets import PRESETS, RECOMMENDED, find_preset

__all__ = ["print_info", "print_presets"]

_FIRST_MODEL = (
    "statemix lm prepare sotu --vocab 1024",
    f"statemix lm train data/sotu --preset {RECOMMENDED} "
    "--lr 8e-3 --matrix-lr 0.04 --warmup 0.1 --minutes 10",
)


def print_presets(length: int) -> None:
    """Every preset with its parameters, FLOPs per token, states and mixers."""
    console = make_console()
    titles = ("parameters", "MFLOPs", "states")
    for size, names in groupby(PRESETS, lambda name: name.partition("-")[0]):
        numbers = (Column(title, justify="right") for title in titles)
        table = Table("preset", *numbers, Column("mixers", overflow="fold"), box=SIMPLE)
        for name in names:
            config = PRESETS[name]
            parameters, flops, states = measure_sizes(config, length)
            mixers = ", ".join(map(str, config.pattern))
            table.add_row(name, f"{parameters:,}", f"{flops / 1e6:,.2f}", f"{states:,}", mixers)
        table.title = (
            f"{size.upper()}: width {config.width}, {config.layers} layers, "
            f"MLP {config.mlp_width}, vocabulary {config.vocab:,}"
        )
        console.print(table)
    say(f"MFLOPs: millions per token in training, forward and backward, at length {length}")
    say(f"recommended for a first model: {RECOMMENDED}, in ten minutes of one core:")
    for command in _FIRST_MODEL:
        say(f"  {command}")


def measure_sizes(config: LMConfig, length: int) -> tuple[int, int, int]:
    """Parameters, FLOPs per training token, and states of a sequence, without allocating them."""
    with torch.device("meta"):
        model = LanguageModel(config)
    parameters = sum(p.numel() for p in model.parameters())
    return parameters, flops_per_token(model, length), model.state_size


def print_info(model: str, length: int) -> None:
    """The sizes of a preset or a trained model, in total and layer by layer."""
    config = find_preset(model) if model in PRESETS else load_model(Path(model)).model.config
    parameters, flops, states = measure_sizes(config, length)
    facts = Table(show_header=False, box=None)
    rows = {
        "parameters": f"{parameters:,}",
        "FLOPs per token": f"{flops:,} in training, {flops // 3:,} forward, at length {length}",
        "states": f"{states:,} per sequence{_growth(config)}",
        "width": f"{config.width}, MLP {config.mlp_width}, vocabulary {config.vocab:,}",
    }
    for name, value in rows.items():
        facts.add_row(name, value)
    layers = Table("layer", "mixer", Column("parameters", justify="right"), box=SIMPLE)
    for index, choice in enumerate(config.layer_mixers):
        with torch.device("meta"):
            mixer = build_mixer(choice.name, config.width, choice.options)
        count = sum(p.numel() for p in mixer.parameters())
        layers.add_row(str(index), str(choice), f"{count:,}")
    console = make_console()
    console.print(facts)
    console.print(layers)


def _growth(config: LMConfig) -> str:
    """What the number of states leaves out, if there is attention without a window."""
    with torch.device("meta"):
        modules = list(LanguageModel(config).modules())
    grows = any(isinstance(module, Attention) and module.window is None for module in modules)
    return ", of which attention adds its own with every step" if grows else ""
