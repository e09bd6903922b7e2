"""Other implementations of the gated scans and their gradients, from the same inputs.

An entrant is a function without arguments that runs forward and backward once.
"""

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from types import ModuleType

import torch
from torch import Tensor, nn

from statemix.bench.packages import by_lpc, scan_of_slices
from statemix.extras import install_command
from statemix.ops import gated_block_scan, gated_companion_scan, hop_scan

__all__ = [
    "COMPANION_RIVALS",
    "PACKAGES",
    "RIVALS",
    "SIZES",
    "Entrant",
    "available",
    "by_hop_scan",
    "by_loop",
    "companion_contest",
    "contest_entrants",
    "differentiated",
    "inputs",
    "ours",
    "ours_companion",
    "takes",
]

Entrant = Callable[[], object]
SIZES = tuple[int, int, int, int]


def inputs(sizes: SIZES, *, companion: bool = False) -> tuple[Tensor, Tensor]:
    """Raw gates (B, T, n, m, m + 1) and values (B, T, n, m), in torch's default dtype.

    Those of the companion recurrence are (B, T, n, m + 1) and (B, T, n).
    """
    torch.manual_seed(0)
    rows = sizes[:-1] if companion else sizes
    gates = torch.randn(*rows, sizes[-1] + 1)
    return gates.requires_grad_(), torch.randn(rows).requires_grad_()


def differentiated(
    scan: Callable[[Tensor, Tensor], Tensor], sizes: SIZES, *, companion: bool = False
) -> Entrant:
    """Forward and backward of `scan` from gates and values to states."""
    gates, v = inputs(sizes, companion=companion)
    weight = torch.ones_like(v)
    return lambda: torch.autograd.grad(scan(gates, v), (gates, v), weight)


def ours(gates: Tensor, v: Tensor) -> Tensor:
    """The states computed by `gated_block_scan`."""
    return gated_block_scan(gates, v)[0]


def ours_companion(gates: Tensor, v: Tensor) -> Tensor:
    """The outputs computed by `gated_companion_scan`."""
    return gated_companion_scan(gates, v)[0]


def by_hop_scan(gates: Tensor, v: Tensor) -> Tensor:
    """The states computed by the paper's parallel scan."""
    w = torch.softmax(gates, -1)
    return hop_scan(w[..., :-1], w[..., -1] * v)[0]


def by_loop(gates: Tensor, v: Tensor) -> Tensor:
    """The states computed by a loop over time steps in torch."""
    w = torch.softmax(gates, -1)
    h = torch.zeros_like(v[:, 0])
    states = []
    for A_t, b_t in zip(w[..., :-1].unbind(1), (w[..., -1] * v).unbind(1), strict=True):
        h = (A_t * h.unsqueeze(-2)).sum(-1) + b_t
        states.append(h)
    return torch.stack(states, 1)


def _lstm(sizes: SIZES) -> Entrant:
    """torch's LSTM with as many units as there are states, including its input projection."""
    B, T, n, m = sizes
    cell = nn.LSTM(n * m, n * m, batch_first=True)
    x = torch.randn(B, T, n * m, requires_grad=True)
    weight = torch.ones(B, T, n * m)
    return lambda: torch.autograd.grad(cell(x)[0], (x, *cell.parameters()), weight)


def _mamba_py(sizes: SIZES) -> Entrant:
    """The parallel scan of mamba.py, for diagonal recurrences."""
    from mambapy.pscan import pscan

    def scan(gates: Tensor, v: Tensor) -> Tensor:
        w = torch.softmax(gates, -1)
        return pscan(w[..., 0], w[..., -1] * v)

    return differentiated(scan, sizes)


@cache
def _import_jax() -> ModuleType:
    """JAX, restricted to one thread."""
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    )
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    return jax


def _jax_entrant(sizes: SIZES, parallel: bool) -> Entrant:
    """`jax.lax.scan`, or `jax.lax.associative_scan` over pairs (A, b), compiled by XLA."""
    jx = _import_jax()
    jnp = jx.numpy
    gates, v = (jnp.asarray(x.detach().numpy()) for x in inputs(sizes))

    def sequential(A, b):
        def step(h, x):
            h = jnp.einsum("bnij,bnj->bni", x[0], h) + x[1]
            return h, h

        return jx.lax.scan(step, jnp.zeros(b.shape[1:]), (A, b))[1]

    def associative(A, b):
        def join(left, right):
            (P, p), (Q, q) = left, right
            return Q @ P, jnp.einsum("...ij,...j->...i", Q, p) + q

        return jx.lax.associative_scan(join, (A, b))[1]

    def loss(gates, v):
        w = jx.nn.softmax(gates, -1)
        A = jnp.moveaxis(w[..., :-1], 1, 0)
        b = jnp.moveaxis(w[..., -1] * v, 1, 0)
        return (associative if parallel else sequential)(A, b).sum()

    gradient = jx.jit(jx.grad(loss, argnums=(0, 1)))
    return lambda: jx.block_until_ready(gradient(gates, v))


def _fla_hgrn(sizes: SIZES) -> Entrant:
    """The recurrent kernel of HGRN in flash-linear-attention, for diagonal recurrences."""
    from fla.ops.hgrn import fused_recurrent_hgrn

    def scan(gates: Tensor, v: Tensor) -> Tensor:
        log_w = torch.log_softmax(gates, -1)
        return fused_recurrent_hgrn(
            (log_w[..., -1].exp() * v).flatten(2), log_w[..., 0].flatten(2)
        )[0].view_as(v)

    return differentiated(scan, sizes)


def _fla_gated_deltanet(sizes: SIZES) -> Entrant:
    """The chunked kernel of Gated DeltaNet in flash-linear-attention.

    It is another mixer of the same width, with heads of at most 64 channels.
    """
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    B, T, n, m = sizes
    head = min(64, n * m)
    heads = n * m // head
    q, k, v = (torch.randn(B, T, heads, head, requires_grad=True) for _ in range(3))
    decay, beta = (torch.randn(B, T, heads, requires_grad=True) for _ in range(2))
    weight = torch.ones_like(v)

    def call() -> object:
        log_decay = torch.nn.functional.logsigmoid(decay.float())
        o = chunk_gated_delta_rule(
            q, k, v, log_decay, beta.sigmoid(), use_qk_l2norm_in_kernel=True
        )[0]
        return torch.autograd.grad(o, (q, k, v, decay, beta), weight)

    return call


def _mamba_ssm(sizes: SIZES) -> Entrant:
    """The selective scan of mamba-ssm: another mixer, as wide, with 16 states per channel."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    B, T, n, m = sizes
    u, delta = (torch.randn(B, n * m, T, requires_grad=True) for _ in range(2))
    read, write = (torch.randn(B, 16, T, requires_grad=True) for _ in range(2))
    A = -torch.rand(n * m, 16, dtype=torch.float32)
    weight = torch.ones_like(u)

    def call() -> object:
        y = selective_scan_fn(u, delta, A, write, read, delta_softplus=True)
        return torch.autograd.grad(y, (u, delta, read, write), weight)

    return call


def _accelerated_scan(sizes: SIZES) -> Entrant:
    """The warp scan of accelerated-scan, for diagonal recurrences; T is a power of two."""
    from accelerated_scan.warp import scan as warp_scan

    def scan(gates: Tensor, v: Tensor) -> Tensor:
        w = torch.softmax(gates, -1)
        a, b = (y.flatten(2).transpose(1, 2).contiguous() for y in (w[..., 0], w[..., -1] * v))
        return warp_scan(a, b).transpose(1, 2).reshape(v.shape)

    return differentiated(scan, sizes)


RIVALS: dict[str, Callable[[SIZES], Entrant]] = {
    "hop_scan": lambda sizes: differentiated(by_hop_scan, sizes),
    "hop_scan compiled": lambda sizes: differentiated(torch.compile(by_hop_scan), sizes),
    "loop": lambda sizes: differentiated(by_loop, sizes),
    "nn.LSTM": _lstm,
    "mamba.py": _mamba_py,
    "torch-slices": lambda sizes: differentiated(scan_of_slices(*sizes[2:]), sizes),
    "jax scan": lambda sizes: _jax_entrant(sizes, parallel=False),
    "jax associative_scan": lambda sizes: _jax_entrant(sizes, parallel=True),
    "fla HGRN": _fla_hgrn,
    "fla GatedDeltaNet": _fla_gated_deltanet,
    "mamba-ssm": _mamba_ssm,
    "accelerated-scan": _accelerated_scan,
}
COMPANION_RIVALS = {"torchlpc": by_lpc}
PACKAGES = {
    "mamba.py": "mambapy",
    "torch-slices": "slices",
    "torchlpc": "torchlpc",
    "jax scan": "jax",
    "jax associative_scan": "jax",
    "fla HGRN": "fla",
    "fla GatedDeltaNet": "fla",
    "mamba-ssm": "mamba_ssm",
    "accelerated-scan": "accelerated_scan",
}
_DIAGONAL = ("mamba.py", "fla HGRN", "accelerated-scan")


def available(names: tuple[str, ...]) -> list[str]:
    """The rivals in `names` that are installed; report the others on stderr."""
    missing = [name for name in names if name in PACKAGES and find_spec(PACKAGES[name]) is None]
    if missing:
        names_missing = ", ".join(missing)
        message = (
            f"not installed, left out: {names_missing}. To include them: "
            f"{install_command('bench')}, or on a GPU {install_command('bench-gpu')}"
        )
        print(message, file=sys.stderr)
    return [name for name in names if name not in missing]


def takes(name: str, sizes: SIZES) -> bool:
    """True if a rival can compute block scans of these sizes."""
    _, T, _, m = sizes
    if name in COMPANION_RIVALS:
        return False
    return (m == 1 or name not in _DIAGONAL) and (name != "accelerated-scan" or T & (T - 1) == 0)


def contest_entrants(sizes: SIZES, names: list[str]) -> dict[str, Entrant]:
    """Our scan and the rivals `names`, at one size."""
    return {
        "statemix": differentiated(ours, sizes),
        **{name: RIVALS[name](sizes) for name in names if takes(name, sizes)},
    }


def companion_contest(sizes: SIZES, names: list[str]) -> dict[str, Entrant]:
    """Our companion scan and the rivals in `names` that compute one; empty if none does."""
    scans = {name: scan for name, scan in COMPANION_RIVALS.items() if name in names}
    if not scans:
        return {}
    entrants = {"statemix": ours_companion, **scans}
    return {name: differentiated(scan, sizes, companion=True) for name, scan in entrants.items()}
