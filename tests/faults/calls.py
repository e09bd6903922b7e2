"""Hostile calls of the public API, with kernels and without: the same numbers, or both refuse.

A second process, in which kernels are switched off, makes the same calls. The numbers of a case
decide its arguments, so both make new ones.
"""

import math
import os
import pickle
import random
import struct
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from faults.runner import Kind, Outcome, note
from statemix import BDLRU, HLRU, LanguageModel, LMConfig, build_mixer
from statemix.config.model import ModelConfig
from statemix.kernels.cpu import layer as cpu_layer
from statemix.kernels.switch import SWITCH
from statemix.models import Tagger
from statemix.ops import (
    NORMALISERS,
    block_scan,
    companion_scan,
    expanded_companion_scan,
    gated_block_scan,
    gated_companion_scan,
    hop_scan,
    normalise,
)
from statemix.ops.block import block_step
from statemix.ops.companion import companion_step
from statemix.ops.dispatch import layer as layer_dispatch
from statemix.ops.gated import gated_block_step

__all__ = ["KIND"]

CALLS = 20  # in a case
_LARGE = 1e15  # beyond this, overflow may put NaN into other entries with kernels than without
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 0.06, torch.float16: 0.02}
_NUMBERS = (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e-40, 0.0, -0.0, 1e4)
_ODD: tuple[Any, ...] = (None, "x", 3, 2.5, [], [1.0], np.zeros(3), object(), True, {})
_DTYPES = (
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.int32, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn),
)
Found = tuple[str, Any]  # ("error", name and text) or ("tensors", [(shape, dtype, numbers)])


@dataclass
class _Call:
    """A call: a function, its tensors by name, and its options."""

    name: str
    function: Callable[..., Any]
    tensors: dict[str, Any]
    options: dict[str, Any]
    finite: bool = True
    story: str = ""

    def __str__(self) -> str:
        shapes = ", ".join(f"{name}: {_shown(x)}" for name, x in self.tensors.items())
        options = ", ".join(f"{name}={_shown(x)}" for name, x in self.options.items())
        return f"{self.name}({shapes}; {options}) [{self.story}]"


def _shown(x: Any) -> str:
    if isinstance(x, Tensor):
        with suppress(Exception):
            small = x.tolist() if x.dim() == 1 and x.dtype in (torch.int64, torch.int32) else ""
            return f"{str(x.dtype).removeprefix('torch.')}{tuple(x.shape)} {x.layout} {small}"
    return repr(x)[:60]


# Arguments that are right


def _sizes(rng: random.Random) -> tuple[int, int, int, int]:
    B = rng.choice((1, 1, 2, 3))
    return B, rng.choice((0, 1, 2, 5, 13)), rng.choice((1, 3, 8, 9)), rng.choice((1, 2, 3, 4, 5, 8))


def _scan(rng: random.Random, draw: Callable[..., Tensor]) -> _Call:
    """A scan with its optional arguments."""
    B, T, n, m = _sizes(rng)
    name = rng.choice(sorted(_SCANS))
    function, is_block, is_gated = _SCANS[name]
    driver = (B, T, n, m) if is_block else (B, T, n)
    X = 2 * draw(*driver, m + 1) if is_gated else draw(*driver, m) / m
    options: dict[str, Any] = {"reverse": True} if rng.random() < 0.2 else {}
    if is_gated:
        options["gate"] = rng.choice(sorted(NORMALISERS))
    _add_sequences(rng, options, B, T)
    tensors = {"X": X, "x": draw(*driver)}
    if rng.random() < 0.4:
        bounds = options.get("cu_seqlens")
        tensors["h0"] = draw(B if bounds is None else len(bounds) - 1, n, m)
    return _Call(name, function, tensors, options)


def _add_sequences(rng: random.Random, options: dict[str, Any], B: int, T: int) -> None:
    """Packed sequences and a mask, at times."""
    if B == 1 and rng.random() < 0.4:
        cuts = sorted(rng.randrange(T + 1) for _ in range(rng.randrange(4)))
        dtype = rng.choice((torch.int32, torch.int64))
        options["cu_seqlens"] = torch.tensor([0, *cuts, T], dtype=dtype)
    if rng.random() < 0.25:
        options["mask"] = torch.tensor([[rng.random() < 0.6 for _ in range(T)] for _ in range(B)])
        options["mask"] = options["mask"].view(B, T).bool()


def _step(rng: random.Random, draw: Callable[..., Tensor]) -> _Call:
    B, _, n, m = _sizes(rng)
    name = rng.choice(("block_step", "companion_step", "gated_block_step"))
    if name == "block_step":
        tensors = {"A": draw(B, n, m, m), "b": draw(B, n, m), "h": draw(B, n, m)}
        return _Call(name, block_step, tensors, {})
    if name == "companion_step":
        tensors = {"a": draw(B, n, m), "b": draw(B, n), "s": draw(B, n, m)}
        return _Call(name, companion_step, tensors, {})
    tensors = {"gates": draw(B, n, m, m + 1), "v": draw(B, n, m), "h": draw(B, n, m)}
    return _Call(name, gated_block_step, tensors, {"gate": rng.choice(sorted(NORMALISERS))})


def _normalise(rng: random.Random, draw: Callable[..., Tensor]) -> _Call:
    B, T, n, m = _sizes(rng)
    gate = rng.choice(sorted(NORMALISERS))
    return _Call("normalise", normalise, {"gates": draw(B, T, n, m + 1)}, {"gate": gate})


def _layer(rng: random.Random, draw: Callable[..., Tensor]) -> _Call:
    """A layer, as one op or line by line."""
    B, T, n, m = _sizes(rng)
    cls = rng.choice((BDLRU, HLRU))
    gate = rng.choice(sorted(NORMALISERS))
    layer = cls(6, n, m, gate=gate, save_memory=rng.random() < 0.3)
    options: dict[str, Any] = {}
    _add_sequences(rng, options, B, T)
    tensors = {"x": draw(B, T, 6)}
    if rng.random() < 0.3:
        bounds = options.get("cu_seqlens")
        rows = B if bounds is None else len(bounds) - 1
        tensors["state"] = draw(rows, n, m)
    if rng.random() < 0.2:
        tensors = {"x_t": draw(B, 6)}
        return _Call(f"{cls.__name__}(gate={gate}).step", layer.step, tensors, {})
    return _Call(f"{cls.__name__}(gate={gate})", layer, tensors, options)


def _model(rng: random.Random, draw: Callable[..., Tensor]) -> _Call:
    B, T, _, _ = _sizes(rng)
    options = {"n_blocks": 2, "block_size": rng.choice((1, 3))}
    if rng.random() < 0.5:
        model: Any = LanguageModel(LMConfig(vocab=7, width=8, layers=1, options=options))
    else:
        model = Tagger(ModelConfig(width=8, options=options), 7, 3)
    tokens = torch.tensor([[rng.randrange(7) for _ in range(T)] for _ in range(B)]).view(B, T)
    own: dict[str, Any] = {}
    if isinstance(model, LanguageModel):
        _add_sequences(rng, own, B, T)
    return _Call(type(model).__name__, model, {"tokens": tokens.long()}, own)


def _construct(rng: random.Random, draw: Callable[..., Tensor]) -> _Call:
    """A layer from sizes and options that may be anything."""
    values = (*_ODD, -1, 0, 1, 2, 3, 2**31, 2**63, 1e30, math.nan)
    near = {"d_model": 6, "n_blocks": 2, "block_size": 3}
    name = rng.choice([*near, "gate", "init", "dtype", "selectivity", "gate_rank"])
    options = {**near, name: rng.choice(values)}

    def build(**sizes: Any) -> Tensor:
        with torch.device("meta"):
            layer = rng_cls(**sizes)
        return torch.tensor(sum(p.numel() for p in layer.parameters()))

    rng_cls = rng.choice((BDLRU, partial(build_mixer, "bdlru")))
    if rng_cls is not BDLRU:
        options = {"d_model": options.pop("d_model"), "options": options}
    call = _Call("build", build, {}, options)
    call.story = f"{name} = {_shown(options.get(name))}"
    return call


_SCANS: dict[str, tuple[Callable[..., Any], bool, bool]] = {
    "block_scan": (block_scan, True, False),
    "hop_scan": (hop_scan, True, False),
    "companion_scan": (companion_scan, False, False),
    "companion_scan observer": (partial(companion_scan, form="observer"), False, False),
    "gated_block_scan": (gated_block_scan, True, True),
    "gated_companion_scan": (gated_companion_scan, False, True),
    "expanded_companion_scan": (expanded_companion_scan, False, True),
}
_MAKERS = (_scan, _scan, _scan, _scan, _layer, _layer, _step, _normalise, _model, _construct)


# Changes that no honest program makes


def _change(rng: random.Random, call: _Call) -> None:
    """Change an argument, and say so."""
    places = [(call.tensors, name) for name in call.tensors]
    places += [(call.options, name) for name in call.options if call.name != "build"]
    if not places:
        return
    owner, name = rng.choice(places)
    way = rng.choice(sorted(_CHANGES)) if rng.random() < 0.7 else rng.choice(_HARMLESS)
    if isinstance(owner[name], Tensor):
        changed = _CHANGES[way](rng, owner[name])
        if way == "numbers" or (way in ("dtype", "odd numbers") and name != "mask"):
            call.finite = call.finite and _is_moderate(changed)
        owner[name] = changed
    else:
        way = "value"
        owner[name] = rng.choice(_ODD)
    call.story += f"{name}: {way}; "


def _is_moderate(x: Any) -> bool:
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.element_size() == 1:
        return True
    return bool((x.detach().abs() < _LARGE).all())


def _numbers(rng: random.Random, x: Tensor) -> Tensor:
    y = x.clone()
    if y.numel() and y.is_floating_point():
        for _ in range(rng.choice((1, 3))):
            y.view(-1)[rng.randrange(y.numel())] = rng.choice(_NUMBERS)
    elif y.numel() and y.dtype in (torch.int32, torch.int64):
        limit = torch.iinfo(y.dtype)
        value = rng.choice((-1, 10**6, limit.max, limit.min, 5))
        y.view(-1)[rng.randrange(y.numel())] = value
    return y


def _strided(rng: random.Random, x: Tensor) -> Tensor:
    if x.dim() == 0:
        return x
    axis = rng.randrange(x.dim())
    return torch.repeat_interleave(x, 2, axis).unflatten(axis, (-1, 2)).select(axis + 1, 0)


def _backwards(rng: random.Random, x: Tensor) -> Tensor:
    """Another order in memory, the same shape."""
    order = rng.sample(range(x.dim()), x.dim())
    back = [order.index(i) for i in range(x.dim())]
    return x.permute(order).contiguous().permute(back)


def _expanded(rng: random.Random, x: Tensor) -> Tensor:
    if x.dim() == 0 or not x.shape[0]:
        return x
    return x[:1].expand(x.shape)


def _resized(rng: random.Random, x: Tensor) -> Tensor:
    if x.dim() == 0:
        return x
    axis = rng.randrange(x.dim())
    size = rng.choice((0, 1, x.shape[axis] + 1, max(0, x.shape[axis] - 1)))
    return torch.zeros(*x.shape[:axis], size, *x.shape[axis + 1 :], dtype=x.dtype)


def _odd_layout(rng: random.Random, x: Tensor) -> Any:
    way = rng.choice(("sparse", "meta", "mkldnn", "quantised", "nested", "inference", "subclass"))
    if way == "sparse":
        return x.to_sparse()
    if way == "meta":
        return x.to("meta")
    if way == "mkldnn":
        return x.float().to_mkldnn()
    if way == "quantised":
        return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8)
    if way == "nested":
        return torch.nested.nested_tensor([*x.float()], layout=torch.jagged)
    if way == "subclass":
        return torch.nn.Parameter(x.float())
    with torch.inference_mode():
        return x.clone()


Change = Callable[[random.Random, Tensor], Any]
_CHANGES: dict[str, Change] = {
    "dtype": lambda rng, x: x.to(rng.choice(_DTYPES)),
    "numbers": _numbers,
    "strided": _strided,
    "backwards": _backwards,
    "expanded": _expanded,
    "resized": _resized,
    "transposed": lambda rng, x: x.transpose(0, -1) if x.dim() > 1 else x,
    "flattened": lambda rng, x: x.flatten(),
    "more axes": lambda rng, x: x[None],
    "odd layout": _odd_layout,
    "odd value": lambda rng, x: rng.choice(_ODD),
    "leaf": lambda rng, x: x.detach().clone().requires_grad_(x.is_floating_point()),
    "offset": lambda rng, x: torch.cat([x.new_zeros(1), x.flatten()])[1:].view(x.shape),
    "unusual dtype": lambda rng, x: x.to(rng.choice(_DTYPES[:4])),
}
_HARMLESS = ("strided", "backwards", "expanded", "leaf", "offset", "unusual dtype", "numbers")


# A call, in this process


def _make(seed: int) -> _Call:
    """The call that a seed decides."""
    rng = random.Random(seed)
    torch.manual_seed(seed & 0xFFFFFFFF)
    generator = torch.Generator().manual_seed(seed & 0xFFFFFFFF)
    draw = partial(torch.randn, generator=generator)
    call = rng.choice(_MAKERS)(rng, draw)
    layer_dispatch.WORTHWHILE = rng.choice((0, 1 << 20))  # as one op, or line by line
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        with suppress(Exception):  # a change that torch itself refuses
            _change(rng, call)
    return call


def _result(seed: int) -> tuple[Found, bool]:
    """What a call returns, gradients included, and whether its inputs are finite."""
    call = _make(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = _flattened(call.function(*call.tensors.values(), **call.options))
            found += _gradients(call, found)
        except Exception as error:
            text = str(error).strip().splitlines()
            return ("error", (type(error).__name__, text[-1] if text else "")), call.finite
        return ("tensors", [_stored(x) for x in found]), call.finite


def _flattened(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value
    nested = items if isinstance(value, dict | tuple | list) else ()
    return [x for each in nested for x in _flattened(each)]


def _gradients(call: _Call, outputs: list[Tensor]) -> list[Tensor]:
    """The gradients of a sum of the outputs with respect to the leaves among the inputs."""
    leaves = [x for x in call.tensors.values() if isinstance(x, Tensor) and x.requires_grad]
    ends = [y for y in outputs if y.requires_grad and y.is_floating_point()]
    if isinstance(call.function, torch.nn.Module):
        leaves += list(call.function.parameters())
    if not leaves or not ends or any(x.device.type == "meta" for x in (*leaves, *ends)):
        return []
    total = torch.stack(
        [
            (
                y.double()
                * torch.linspace(-1, 1, max(1, y.numel()), dtype=torch.float64)[: y.numel()].view(
                    y.shape
                )
            ).sum()
            for y in ends
        ]
    ).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    return [g for g in found if g is not None]


def _stored(x: Tensor) -> tuple[tuple[int, ...], str, Any]:
    """Shape, dtype and numbers of a tensor."""
    dtype = str(x.dtype)
    if x.is_nested:
        return (), dtype, None
    if x.device.type == "meta" or x.layout != torch.strided:
        return tuple(x.shape), dtype, None
    return tuple(x.shape), dtype, x.detach().double().numpy()


# The other process


class _Peer:
    """A process in which kernels are switched off; it makes the calls that it is given."""

    def __init__(self) -> None:
        environment = {**os.environ, SWITCH: "off"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.calls"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def send(self, seeds: list[int]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(struct.pack(f"<{len(seeds)}Q", *seeds))
        self.process.stdin.flush()

    def receive(self) -> Found:
        assert self.process.stdout is not None
        (size,) = struct.unpack("<Q", self.process.stdout.read(8))
        found: Found = pickle.loads(self.process.stdout.read(size))  # of a process of ours
        return found


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Make every call that is asked for."""
    torch.set_num_threads(1)
    while data := requests.read(8):
        found, _ = _result(struct.unpack("<Q", data)[0])
        answer = pickle.dumps(found)
        answers.write(struct.pack("<Q", len(answer)) + answer)
        answers.flush()


# Cases

_peers: dict[int, _Peer] = {}


def _case(rng: random.Random, folder: Path) -> Outcome:
    """Twenty calls."""
    peer = _peers.get(os.getpid()) or _new_peer()
    cpu_layer.STEPS = 7
    labels: Counter[str] = Counter()
    seeds = [rng.getrandbits(48) for _ in range(CALLS)]
    peer.send(seeds)
    for seed in seeds:
        note(folder, f"faults.calls.explain({seed})")
        mine, finite = _result(seed)
        label, wrong = _compare(mine, peer.receive(), finite, *_limits(seed))
        if wrong:
            _peers.clear()  # with its other answers
            text = f"{_make(seed)}\n    {wrong}\n    faults.calls.explain({seed})"
            return Outcome("different", text, count=CALLS)
        labels[label] += 1
    return Outcome(labels.most_common(1)[0][0], count=CALLS, labels=dict(labels))


def _limits(seed: int) -> tuple[float, float]:
    """The tolerance of the least precise dtype of a call, and its largest input."""
    call = _make(seed)
    tensors = [x for x in call.tensors.values() if isinstance(x, Tensor)]
    if isinstance(call.function, torch.nn.Module) or hasattr(call.function, "__self__"):
        tensors.append(torch.zeros(()))
    precision = max((_TOLERANCE.get(x.dtype, 0.0) for x in tensors), default=0.0)
    dense = [x for x in tensors if x.dtype in _TOLERANCE and x.layout == torch.strided]
    return precision, max((_largest(_stored(x)[2]) for x in dense), default=0.0)


def _new_peer() -> _Peer:
    _peers.clear()
    return _peers.setdefault(os.getpid(), _Peer())


def _compare(
    mine: Found, theirs: Found, finite: bool, precision: float, largest: float
) -> tuple[str, str]:
    """A label, and what differs."""
    if mine[0] != theirs[0]:
        said = mine[1] if mine[0] == "error" else theirs[1]
        return "", f"with kernels: {mine[0]}, without: {theirs[0]} ({said})"
    if mine[0] == "error":
        name = mine[1][0]
        clear = name in ("ValueError", "TypeError", "FloatingPointError", "IndexError")
        return "refused" if clear else f"refused by torch ({name})", ""
    if not finite:
        return "not finite", ""
    if len(mine[1]) != len(theirs[1]):
        return "", f"{len(mine[1])} tensors with kernels, {len(theirs[1])} without"
    scale = max(largest, *(_largest(x[2]) for x in theirs[1]), 0.0)
    for i, (ours, plain) in enumerate(zip(mine[1], theirs[1], strict=True)):
        if ours[:2] != plain[:2]:
            return "", f"tensor {i}: {ours[:2]} with kernels, {plain[:2]} without"
        if wrong := _difference(ours[2], plain[2], ours[1], precision, scale):
            return "", f"tensor {i}: {wrong}"
    return "same numbers", ""


def _largest(x: Any) -> float:
    """The largest finite absolute value."""
    finite = np.zeros(1) if x is None else x[np.isfinite(x)]
    return float(np.abs(finite).max()) if finite.size else 0.0


def _difference(ours: Any, plain: Any, dtype: str, precision: float, scale: float) -> str:
    """What differs by more than rounding.

    Gradients are sums of terms as large as `scale`, which may cancel: 256 units in its last place.
    """
    if ours is None or plain is None or not plain.size or not np.isfinite(plain).all():
        return ""
    own = float(np.abs(plain).max())
    error = float(np.abs(ours - plain).max())
    precision = max(precision, _TOLERANCE.get(getattr(torch, dtype.removeprefix("torch.")), 0.0))
    if error <= precision * own + 3e-5 * scale * (precision / 2e-4) ** 0.5 + 1e-30:
        return ""
    return f"{dtype} differs by {error:.3g} where the largest number is {own:.3g}"


def explain(seed: int) -> None:
    """Print a call, and what it returns here."""
    print(_make(seed))
    print(_result(seed))


KIND = Kind("calls", "hostile calls of the API", 55, _case, seconds=60, small=range(4))

if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
