"""Mixers: the paper's layers, and the table that users add theirs to."""

from statemix.layers import baselines
from statemix.layers.bdlru import BDLRU
from statemix.layers.hlru import HLRU
from statemix.layers.mixer import MIXERS, Mixer, build_mixer, register_mixer
from statemix.layers.share import share_sequences
from statemix.layers.split import divide_blocks, gather_blocks
from statemix.layers.wrappers import OutputGate, ShortConvolution

__all__ = [
    "BDLRU",
    "HLRU",
    "MIXERS",
    "Mixer",
    "OutputGate",
    "ShortConvolution",
    "baselines",
    "build_mixer",
    "divide_blocks",
    "gather_blocks",
    "register_mixer",
    "share_sequences",
]
