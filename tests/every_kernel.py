"""Call every compiled scan and layer, for runs under AddressSanitizer (CONTRIBUTING.md).

python tests/every_kernel.py
"""

import itertools

import torch
from cases import CASES, bounds, random_mask
from test_layer_op import is_one_op

from statemix import BDLRU, HLRU
from statemix.kernels.cpu import layer as cpu_layer
from statemix.models import ModelConfig, build_model
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch.layer_call import LAYER_KERNELS
from statemix.ops.dispatch.registry import KERNELS
from statemix.tasks import find_task

T = 13
SIZES = [
    (1, 20),
    (2, 3),
    (3, 8),
    (3, 16),
    (4, 17),
    (5, 8),
    (6, 9),
    (7, 8),
    (8, 20),
    (9, 5),
    (16, 8),
    (17, 11),
]  # m and n
SETTINGS = [
    (3, None, {}),
    (2, None, {"mask": random_mask(2, T, 0)}),
    (1, 4, {"cu_seqlens": bounds([3, 0, 9, 1]), "mask": random_mask(1, T, 0)}),
]
NAMES = {"bdlru": ("n_blocks", "block_size"), "hlru": ("n_channels", "order")}


def call_scans() -> int:
    """Call every scan in both directions of time; `hop_scan` has no kernel and is left out."""
    cases = [case for case in CASES if case.name != "hop_scan"]
    for case, (m, n), (B, S, options), reverse in itertools.product(
        cases, SIZES, SETTINGS, (False, True)
    ):
        inputs = [y.float().requires_grad_() for y in case.inputs(B, T, n, m, S=S)]
        h, final = case.scan(*inputs, reverse=reverse, **options)
        torch.autograd.grad(h.sum() + final.sum(), inputs)
    return len(cases) * len(SIZES) * len(SETTINGS) * 2


def call_layers() -> int:
    """Call every layer as one op, with and without saved gates."""
    choices = list(
        itertools.product(
            (BDLRU, HLRU), SIZES, (False, True), ("softmax", "hardmax", "tanh"), SETTINGS
        )
    )
    for cls, (m, n), save_memory, gate, (B, _, options) in choices:
        layer, x = (
            cls(5, n, m, gate=gate, save_memory=save_memory),
            torch.randn(B, T, 5, requires_grad=True),
        )
        if m <= LAYER_KERNELS["cpu"].max_size:
            assert is_one_op(layer, x)
        y, final = layer(x, **options)
        torch.autograd.grad(y.sum() + final.sum(), [x, *layer.parameters()])
    return len(choices)


def call_tables() -> int:
    """Call models whose first layer looks up its gates in a table."""
    choices = list(
        itertools.product(
            NAMES.items(),
            SIZES,
            ("softmax", "hardmax", "sigmoid", "relu", "tanh", "none"),
            (1, 3, 8),
        )
    )
    for (mixer, names), (m, n), gate, B in choices:
        options = {**dict(zip(names, (n, m), strict=True)), "gate": gate}
        model = build_model(
            ModelConfig(mixer, options, width=8, channel_mixer="none"), find_task("s3"), T
        )
        model(torch.randint(0, 6, (B, T)))[0].sum().backward()
    return len(choices)


if __name__ == "__main__":
    assert KERNELS, "There is no compiled library: see `statemix info`."
    cpu_layer.STEPS = 7
    layer_dispatch.WORTHWHILE = 0
    for threads in (1, 2):
        torch.set_num_threads(threads)
        scans, layers, models = call_scans(), call_layers(), call_tables()
        print(f"{threads} threads: {scans} scans, {layers} layers, {models} models", flush=True)
