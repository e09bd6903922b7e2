"""The paper's baselines in plain PyTorch: linear in time, with the interface of every mixer."""

from statemix.layers.baselines.attention import Attention
from statemix.layers.baselines.conv import Conv
from statemix.layers.baselines.deltanet import DeltaNet, DeltaProduct, GatedDeltaNet
from statemix.layers.baselines.lru import LRU, Mamba
from statemix.layers.baselines.lstm import LSTM
from statemix.layers.baselines.mamba2 import Mamba2

__all__ = [
    "LRU",
    "LSTM",
    "Attention",
    "Conv",
    "DeltaNet",
    "DeltaProduct",
    "GatedDeltaNet",
    "Mamba",
    "Mamba2",
]
