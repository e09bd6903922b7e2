"""Presets and protocols: functions from one run config to another."""

import math
from dataclasses import fields, replace
from typing import Any

from statemix.config.model import SIZES
from statemix.config.task import Aids, RunConfig

__all__ = [
    "mad_preset",
    "paper_protocol",
    "paper_sizes",
    "sharpened_preset",
    "tracking_preset",
]

_TRACKING_LENGTH = 16
_TRACKING_STAGES = (2, 3, 4, 6, 9, 13, 20, 30, 45, 68, 101)
_WORD_LENGTHS = {"parity": 40, "even_pairs": 40, "cycle_nav": 40, "mod_arith": 39}
_WORD_STAGES = (4, 6, 8, 12, 18, 26)  # tokens, with the empty one at the end
_WORD_STEPS = {"mod_arith": 2500}  # in a stage, before a restart
_INITS = {"compress": "hold", "copy": "select", "recall": "select"}
_MAD_STEPS = {"compress": 4000, "copy": 6000, "recall": 3000}


def paper_protocol(config: RunConfig) -> RunConfig:
    """The run by the paper's protocol: no BOS token, no early stopping, no training aids.

    The sizes stay; `paper_sizes` sets those of the paper.
    """
    off: dict[str, Any] = {aid.name: aid.default for aid in fields(Aids)}
    return replace(
        config,
        protocol="paper",
        model=replace(config.model, bos=False),
        patience=0,
        solved=2.0,
        warmup=0,
        cooldown=0.0,
        min_lr=1e-5,
        weight_decay=0.0,
        clip=0.0,
        optimiser="adamw",
        **off,
    )


def paper_sizes(config: RunConfig) -> RunConfig:
    """The run with the sizes, epochs and largest learning rate of the paper's models."""
    published = {"swiglu": "published_swiglu", "mlp": "published_mlp"}
    channel: Any = published.get(config.model.channel_mixer, config.model.channel_mixer)
    model = replace(config.model, width=128, channel_mixer=channel)
    return replace(config, model=model, batch=128, epochs=200, max_steps=0, lr=1e-3)


def mad_preset(config: RunConfig) -> RunConfig:
    """The run with a start and a schedule that learn compression, copying and recall in minutes.

    Muon updates the matrices at a constant rate that decays over the last 30 % of the steps. The
    gates of BD-LRU and H-LRU start nearly hard and hold their state, and the positions of the
    autoencoder start smooth. Any other task has the schedule, and the paper's start.
    """
    model = replace(config.model, width=128, bos=False)
    if model.mixer in SIZES and config.task in _INITS:
        model = replace(model, options={**model.options, "init": _INITS[config.task]})
    if config.task == "compress":
        model = replace(model, positions="smooth", position_std=0.1)
    steps = _MAD_STEPS.get(config.task, 4000)
    config = replace(config, model=model, train_examples=20_000, max_steps=steps)
    return replace(
        config,
        epochs=math.ceil(steps / config.steps_per_epoch),
        optimiser="muon",
        lr=2e-3,
        matrix_lr=0.01,
        warmup=20,
        cooldown=0.3,
        min_lr=2e-5,
        patience=0,
    )


def sharpened_preset(config: RunConfig) -> RunConfig:
    """The run with every aid that makes learning to track states reliable; the layer is unchanged.

    The aids are a BOS token, a curriculum of growing prefixes, a large constant learning rate with
    restarts, gates that are sharpened in the decay, and a final check on held-out sequences sixteen
    times as long (one token longer if the length is odd: some tasks have odd lengths only).
    """
    length = config.length or _TRACKING_LENGTH
    return replace(
        config,
        model=replace(config.model, channel_mixer="none", bos=True),
        length=length,
        curriculum=tuple(stage for stage in _TRACKING_STAGES if stage < length),
        restart_after=200,
        decay=300,
        sharpen=1.005,
        hold=16 * length + length % 2,
        lr=2e-2,
        warmup=100,
        clip=1.0,
        patience=0,
        solved=2.0,
    )


def tracking_preset(config: RunConfig) -> RunConfig:
    """The run that ends with a model that only copies states, proved right at every length.

    For tasks that ask at every step, this is the sharpened preset, but in the decay the gates
    become hard instead of sharper. For tasks with one answer at the end of a word, the gates are
    hard from the start, and the words grow. Either restarts if the model cannot be proved right.
    Only BD-LRU can be proved; for any other mixer this is the sharpened preset.
    """
    if config.model.mixer != "bdlru":
        return sharpened_preset(config)
    length = config.length or _WORD_LENGTHS.get(config.task, _TRACKING_LENGTH)
    config = sharpened_preset(replace(config, length=length))
    config = replace(config, sharpen=1.0, certify=True)
    if config.task not in _WORD_LENGTHS:
        return replace(config, harden=True)
    options = {**config.model.options, "gate": "hardmax"}
    return replace(
        config,
        model=replace(config.model, options=options),
        curriculum=tuple(stage for stage in _WORD_STAGES if stage <= length),
        stages="words",
        stage_tokens=4096,
        restart_after=_WORD_STEPS.get(config.task, 400),
    )
