"""The paper's figure of throughput, forward and backward.

a   128 blocks, 2,048 steps, by block size: one step after the other, the paper's parallel scan, the same compiled, and ours
b   768 states, by block size and length
c   whole layers of the same number of parameters: the mixers of the presets 2m-*
"""

from collections.abc import Iterator

import torch

from statemix.bench.measure import Contest
from statemix.bench.rivals import RIVALS, Entrant, differentiated, ours
from statemix.layers.mixer import build_mixer
from statemix.models.presets import PRESETS

BLOCKS, LENGTH, STATES = 128, 2048, 768
SIZES = (1, 2, 4, 8, 16)
LENGTHS = (256, 1024, 4096, 16384)
LARGEST_COMPILED = 4  # beyond it compiling takes many minutes
WAYS = {"sequential": "loop", "parallel": "hop_scan", "parallel, compiled": "hop_scan compiled"}


def throughput_contests(compiled: bool) -> Iterator[Contest]:
    """All three panels; compiling takes a minute or more for each block size of the first, up to `LARGEST_COMPILED`."""
    for m in SIZES:
        sizes = (1, LENGTH, BLOCKS, m)
        others = {
            way: RIVALS[name](sizes)
            for way, name in WAYS.items()
            if not name.endswith("compiled") or (compiled and m <= LARGEST_COMPILED)
        }
        entrants = {"fused": differentiated(ours, sizes), **others}
        yield Contest(
            "throughput", f"a: n = {BLOCKS}, m = {m}, B = 1, T = {LENGTH}", "fused", entrants
        )
    for T in LENGTHS:
        by_size = {f"m = {m}": differentiated(ours, (1, T, STATES // m, m)) for m in SIZES}
        yield Contest("throughput", f"b: {STATES} states, B = 1, T = {T}", "m = 1", by_size)
    yield Contest(
        "throughput", f"c: layers of 2m-*, B = 1, T = {LENGTH}", "bdlru-m4", dict(matched_layers())
    )


def matched_layers() -> Iterator[tuple[str, Entrant]]:
    """The mixer of each small preset by itself."""
    for name, preset in PRESETS.items():
        if name.startswith("2m-"):
            yield name.removeprefix("2m-"), layer(preset.mixer, preset.width, dict(preset.options))


def layer(mixer: str, width: int, options: dict[str, object]) -> Entrant:
    """Forward and backward of a mixer."""
    torch.manual_seed(0)
    module = build_mixer(mixer, width, options)
    x, weight = torch.randn(1, LENGTH, width, requires_grad=True), torch.randn(1, LENGTH, width)
    return lambda: torch.autograd.grad(module(x)[0], (x, *module.parameters()), weight)
