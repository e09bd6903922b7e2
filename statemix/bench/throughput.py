"""The paper's figure of throughput, forward and backward.

a   128 blocks and 2,048 steps, by block size: our scan, a loop, and the paper's parallel scan, as
    it is and compiled
b   768 states, by block size and length
c   layers with the same number of parameters: the mixers of the presets 2m-*
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from statemix.bench.measure import Contest
from statemix.bench.rivals import RIVALS, Entrant, differentiated, ours
from statemix.layers.mixer import build_mixer
from statemix.models.presets import PRESETS

__all__ = ["BLOCKS", "LENGTH", "LENGTHS", "SIZES", "STATES", "throughput_contests"]

BLOCKS = 128
LENGTH = 2048
STATES = 768
SIZES = (1, 2, 4, 8, 16)
LENGTHS = (256, 1024, 4096, 16384)
_LARGEST_COMPILED = 4  # compiling larger blocks takes many minutes
_WAYS = {"sequential": "loop", "parallel": "hop_scan", "parallel, compiled": "hop_scan compiled"}


def throughput_contests(compiled: bool) -> Iterator[Contest]:
    """The contests of all panels; `compiled` adds a minute or more per block size to panel a."""
    for m in SIZES:
        sizes = (1, LENGTH, BLOCKS, m)
        others = {
            way: RIVALS[name](sizes)
            for way, name in _WAYS.items()
            if not name.endswith("compiled") or (compiled and m <= _LARGEST_COMPILED)
        }
        entrants = {"fused": differentiated(ours, sizes), **others}
        setting = f"a: n = {BLOCKS}, m = {m}, B = 1, T = {LENGTH}"
        yield Contest("throughput", setting, "fused", entrants)
    for T in LENGTHS:
        by_size = {f"m = {m}": differentiated(ours, (1, T, STATES // m, m)) for m in SIZES}
        yield Contest("throughput", f"b: {STATES} states, B = 1, T = {T}", "m = 1", by_size)
    setting = f"c: layers of 2m-*, B = 1, T = {LENGTH}"
    yield Contest("throughput", setting, "bdlru-m4", dict(_matched_layers()))


def _matched_layers() -> Iterator[tuple[str, Entrant]]:
    """Yield the name of each small preset, and its mixer as an entrant."""
    for name, preset in PRESETS.items():
        if name.startswith("2m-") and not preset.mixers:
            yield name.removeprefix("2m-"), _layer(preset.mixer, preset.width, preset.options)


def _layer(mixer: str, width: int, options: Mapping[str, Any]) -> Entrant:
    """Forward and backward of one mixer."""
    torch.manual_seed(0)
    module = build_mixer(mixer, width, options)
    x = torch.randn(1, LENGTH, width, requires_grad=True)
    weight = torch.randn(1, LENGTH, width)
    return lambda: torch.autograd.grad(module(x)[0], (x, *module.parameters()), weight)
