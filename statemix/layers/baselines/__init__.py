"""The paper's baselines and newer layers in plain PyTorch, with the interface of every mixer."""

from statemix.layers.baselines.attention import Attention
from statemix.layers.baselines.conv import Conv
from statemix.layers.baselines.deltanet import DeltaNet, DeltaProduct, GatedDeltaNet
from statemix.layers.baselines.lru import LRU, Mamba
from statemix.layers.baselines.lstm import LSTM
from statemix.layers.baselines.mamba2 import Mamba2
from statemix.layers.baselines.mamba3 import Mamba3
from statemix.layers.baselines.pdssm import PDSSM
from statemix.layers.baselines.rwkv7 import RWKV7
from statemix.layers.baselines.slice import SLiCE

__all__ = [
    "LRU",
    "LSTM",
    "PDSSM",
    "RWKV7",
    "Attention",
    "Conv",
    "DeltaNet",
    "DeltaProduct",
    "GatedDeltaNet",
    "Mamba",
    "Mamba2",
    "Mamba3",
    "SLiCE",
]
