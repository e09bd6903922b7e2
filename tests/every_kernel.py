"""Call every function of the compiled library, for runs under sanitizers (CONTRIBUTING.md).

python tests/every_kernel.py
"""

import ctypes
import itertools
import re
import time
from pathlib import Path

import torch
from cases import CASES, bounds, random_mask
from test_layer_op import is_one_op

from statemix import BDLRU, HLRU, LanguageModel, LMConfig
from statemix.kernels.cpu import layer as cpu_layer
from statemix.kernels.cpu import library as cpu_library
from statemix.kernels.cpu.scans import SUPPORTED_GATES
from statemix.models import ModelConfig, build_model
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.dispatch.dense import gated_activation, softmax_minus_onehot
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
DTYPES = (torch.float32, torch.bfloat16)
NAMES = {"bdlru": ("n_blocks", "block_size"), "hlru": ("n_channels", "order")}


LARGEST = [((m, 2), SETTINGS[2], dtype, False) for m in (33, 256) for dtype in DTYPES]


def call_scans() -> int:
    """Call every scan in both directions of time; `hop_scan` has no kernel and is left out."""
    cases = [case for case in CASES if case.name != "hop_scan"]
    choices = [*itertools.product(SIZES, SETTINGS, DTYPES, (False, True)), *LARGEST]
    for case, ((m, n), (B, S, options), dtype, reverse) in itertools.product(cases, choices):
        inputs = [y.to(dtype).requires_grad_() for y in case.inputs(B, T, n, m, S=S)]
        h, final = case.scan(*inputs, reverse=reverse, **options)
        torch.autograd.grad(h.sum() + final.sum(), inputs)
    return len(cases) * len(choices)


def call_layers() -> int:
    """Call every layer as one op, with and without saved gates."""
    gates = ("softmax", "hardmax", "tanh")
    choices = list(itertools.product((BDLRU, HLRU), SIZES, (False, True), gates, SETTINGS, DTYPES))
    for cls, (m, n), save_memory, gate, (B, _, options), dtype in choices:
        layer = cls(5, n, m, gate=gate, save_memory=save_memory)
        x = torch.randn(B, T, 5, requires_grad=True)
        if m <= LAYER_KERNELS["cpu"].max_size:
            assert is_one_op(layer, x)
        with torch.autocast("cpu", dtype, enabled=dtype == torch.bfloat16):
            y, final = layer(x, **options)
        torch.autograd.grad(y.sum() + final.sum(), [x, *layer.parameters()])
    return len(choices)


@torch.no_grad()
def call_steps() -> int:
    """Decode with every layer, alone and in a residual block, from no state and from one."""
    choices = list(
        itertools.product(NAMES.items(), SIZES, sorted(SUPPORTED_GATES - {None}), (1, 5))
    )
    for (mixer, names), (m, n), gate, B in choices:
        layer = {"bdlru": BDLRU, "hlru": HLRU}[mixer](5, n, m, gate=gate)
        options = {**dict(zip(names, (n, m), strict=True)), "gate": gate}
        model = LanguageModel(LMConfig(vocab=7, width=8, layers=1, mixer=mixer, options=options))
        state, states = None, None
        for _ in range(2):
            _, state = layer.step(torch.randn(B, 5), state)
            _, states = model.step(torch.randint(0, 7, (B,)), states)
    return 2 * len(choices)


def call_dense() -> int:
    """Call what is no scan: activations and losses, with their gradients."""
    counts = (1, 7, 8, 33, 1000, (1 << 15) + 5)
    for dtype, count in itertools.product(DTYPES, counts):
        a, b = (torch.randn(count, dtype=dtype, requires_grad=True) for _ in range(2))
        torch.autograd.grad(gated_activation(a, b).sum(), [a, b])
    shapes = list(itertools.product((1, 3, 40), (1, 2, 7, 16, 257)))
    for dtype, (rows, classes), gradient in itertools.product(DTYPES, shapes, (False, True)):
        targets = torch.randint(0, classes, (rows,))
        targets[0] = -1
        logits = torch.randn(rows, classes, dtype=dtype)
        assert softmax_minus_onehot(logits, targets, -1, gradient=gradient) is not None
    return len(DTYPES) * (len(counts) + 2 * len(shapes))


def call_move() -> int:
    """Call the loop that only moves numbers, which benchmarks compare kernels with."""
    sizes = (0, 1, 2, 3, 8, 17)
    for reads, writes in itertools.product(sizes, sizes):
        src, dst = torch.randn(T * reads * 8 + 1), torch.empty(T * writes * 8 + 1)
        numbers = [ctypes.c_int64(size) for size in (reads, writes, T)]
        places = [ctypes.c_void_p(y.data_ptr()) for y in (src, dst)]
        library().handle.statemix_move(places[0], numbers[0], places[1], *numbers[1:])
    return len(sizes) ** 2


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


def library() -> cpu_library.Library:
    found = cpu_library.load()
    assert isinstance(found, cpu_library.Library), found
    return found


def not_called() -> set[str]:
    """The exported functions that no one has called; a handle keeps those that it was asked for."""
    source = Path(cpu_library.__file__).with_name("library.cpp").read_text()
    exported = re.findall(r"^STATEMIX_EXPORT .*?\b(statemix_\w+)\(", source, re.MULTILINE)
    return set(exported) - vars(library().handle).keys()


def main() -> None:
    assert KERNELS, "There is no compiled library: see `statemix info`."
    cpu_layer.STEPS = 7
    layer_dispatch.WORTHWHILE = 0
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for call in (call_scans, call_layers, call_tables, call_steps, call_dense, call_move):
            started = time.process_time()
            count = call()
            what = call.__name__.removeprefix("call_")
            seconds = time.process_time() - started
            print(f"{threads} threads, {what}: {count} calls, {seconds:.0f} s", flush=True)
    assert not not_called(), not_called()


if __name__ == "__main__":
    main()
