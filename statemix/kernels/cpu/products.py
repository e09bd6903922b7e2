"""Matrix products on the CPU, each kind by the faster of the two libraries in torch.

torch.mm passes float32 to the BLAS that torch was built with. If that is MKL, it does not use
AVX-512 on AMD processors, and oneDNN, which is also part of torch, is up to 2.3 times as fast. On
other processors the two are close. The first large product of each kind measures both for a few
milliseconds; oneDNN is chosen if it is clearly faster.

    STATEMIX_PRODUCTS=auto      measure (the default)
    STATEMIX_PRODUCTS=onednn    oneDNN for all large products in float32
    STATEMIX_PRODUCTS=blas      torch.mm for all products

oneDNN is reached by an op that torch's compiler uses. If a future torch changes the op, or the op
fails its self-check, torch.mm computes all products. Other dtypes always use torch.mm.
"""

import os
import time
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from statemix.kernels.cpu import pool

__all__ = ["KINDS", "SWITCH", "Choice", "add_product", "choices", "into", "product", "unavailable"]

SWITCH = "STATEMIX_PRODUCTS"
SCHEMA = (
    "mkldnn::_linear_pointwise(Tensor X, Tensor W, Tensor? B, str attr, Scalar?[] scalars, "
    "str? algorithm) -> Tensor Y"
)
LARGE = 1 << 21  # multiplications from which oneDNN's call overhead is small
FASTER = 1.2  # how much faster oneDNN must be, so that noise does not change the choice
ROUNDS = 5
LARGEST_OUTPUT = 1 << 24  # bytes; the C library maps larger blocks afresh in every call
STEPS = 1024  # rows of a larger output that are computed at once
SIZE = (256, 256, 512)  # of the measured products
TOLERANCE = 1e-5

# Whether the two factors are transposed: the products of a linear map, and of its gradients.
KINDS = {(False, True): "x Wᵀ", (False, False): "dy W", (True, False): "xᵀ dy"}


@dataclass(frozen=True)
class Choice:
    """The library that computes one kind of product, and the reason."""

    kind: str
    library: str
    why: str


CHOICES: dict[str, Choice] = {}


def product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """The product a b of two matrices, plus a bias for every row."""
    if not _by_onednn(a, b):
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    if 4 * a.shape[0] * b.shape[1] < LARGEST_OUTPUT:
        return _onednn(a, b, bias)
    out = pool.empty((a.shape[0], b.shape[1]))
    into(out, a, b, bias)
    return out


def into(out: Tensor, a: Tensor, b: Tensor, bias: Tensor | None = None) -> None:
    """Write the product a b to `out`, which may have a wider dtype and keeps it under autocast."""
    if out.dtype != a.dtype:
        out.copy_(product(a, b, bias))
        return
    if _by_onednn(a, b):
        for start in range(0, a.shape[0], STEPS):
            rows = slice(start, start + STEPS)
            out[rows] = _onednn(a[rows], b, bias)
    elif bias is None:
        torch.mm(a, b, out=out)
    else:
        torch.addmm(bias, a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product a b to `total`, which may have a wider dtype.

    It is fastest if the product is wider than high.
    """
    if _by_onednn(a, b):
        total.add_(_onednn(a, b, None))
    elif a.dtype == b.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(torch.mm(a, b))


def choices() -> list[Choice]:
    """The library of every kind of product, measured now if it has not been yet."""
    return [_choice(kind) for kind in KINDS]


def _by_onednn(a: Tensor, b: Tensor) -> bool:
    """True if oneDNN computes the product a b."""
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        return False
    if a.shape[0] * a.shape[1] * b.shape[1] < LARGE or torch.compiler.is_compiling():
        return False
    # Modes count or fake the public ops that they see.
    if a.device.type != "cpu" or _get_current_dispatch_mode() is not None:
        return False
    kind = (_is_transposed(a), _is_transposed(b))
    return _choice(kind if kind in KINDS else (True, False)).library == "oneDNN"


def _is_transposed(x: Tensor) -> bool:
    return x.stride(0) == 1 and x.stride(1) >= x.shape[0] > 1


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    op = torch.ops.mkldnn._linear_pointwise.default
    return op(_strided(a), _dense(b).t(), bias, "none", [], "")


def _strided(x: Tensor) -> Tensor:
    """`x`, or a copy if neither its rows nor its columns are contiguous."""
    rows = x.stride(1) == 1 and x.stride(0) >= x.shape[1]
    return x if rows or _is_transposed(x) else x.contiguous()


def _dense(x: Tensor) -> Tensor:
    """`x`, or a copy if there are gaps between its rows or columns.

    With gaps in the second factor, oneDNN falls back to an implementation that is a thousand times
    slower.
    """
    return x if x.is_contiguous() or x.t().is_contiguous() else x.contiguous()


@cache
def _wish() -> str:
    wish = os.environ.get(SWITCH, "auto").lower() or "auto"
    if wish not in ("auto", "onednn", "blas"):
        raise ValueError(
            f"The environment variable {SWITCH} must be 'auto', 'onednn' or 'blas', got {wish!r}."
        )
    return wish


@cache
def unavailable() -> str:
    """The reason why oneDNN cannot be reached, empty if it can."""
    if not torch.backends.mkldnn.is_available():
        return "this build of torch has no oneDNN"
    op = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if op is None or str(op.default._schema) != SCHEMA:
        return f"torch {torch.__version__} has no op mkldnn::_linear_pointwise with a known schema"
    for kind in KINDS:
        a, b = _sample(kind, (33, 47, 65))
        bias = b[0].contiguous()
        try:
            ours = _onednn(a, b, bias)
        except RuntimeError as error:
            return f"mkldnn::_linear_pointwise fails: {str(error).splitlines()[0]}"
        exact = a.double() @ b.double() + bias.double()
        if not bool((ours - exact).norm() <= TOLERANCE * exact.norm()):
            return "mkldnn::_linear_pointwise fails its self-check"
    return ""


def _choice(kind: tuple[bool, bool]) -> Choice:
    """The choice for one kind of product, made at most once per process."""
    name = KINDS[kind]
    if name not in CHOICES:
        with torch.inference_mode():
            CHOICES[name] = Choice(name, *_decide(kind))
    return CHOICES[name]


def _decide(kind: tuple[bool, bool]) -> tuple[str, str]:
    if _wish() == "blas":
        return "torch.mm", f"{SWITCH}=blas"
    if reason := unavailable():
        return "torch.mm", reason
    if _wish() == "onednn":
        return "oneDNN", f"{SWITCH}=onednn"
    rows, inner, columns = SIZE
    blas, onednn = (2e-9 * rows * inner * columns / t for t in _measure(*_sample(kind, SIZE)))
    faster = onednn >= FASTER * blas
    why = f"measured {onednn:.0f} GFLOP/s in oneDNN, {blas:.0f} in torch.mm"
    return "oneDNN" if faster else "torch.mm", why


def _measure(a: Tensor, b: Tensor) -> tuple[float, float]:
    """The shortest times of torch.mm and of oneDNN, in turns."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS + 1):
        start = time.perf_counter()
        torch.mm(a, b)
        middle = time.perf_counter()
        _onednn(a, b, None)
        best[0] = min(best[0], middle - start)
        best[1] = min(best[1], time.perf_counter() - middle)
    return best[0], best[1]


def _sample(kind: tuple[bool, bool], sizes: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Factors of a product of this kind, without a draw from torch's global generator."""
    rows, inner, columns = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inner), (inner, columns))
    a, b = (
        torch.randn(shape[::-1] if transposed else shape, generator=generator)
        for shape, transposed in zip(shapes, kind, strict=True)
    )
    return (a.t() if kind[0] else a), (b.t() if kind[1] else b)
