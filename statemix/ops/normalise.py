"""Gate functions: from raw gates to rows whose absolute values sum to at most one.

    w_j = f(g_j) / Z(g),    Z = Σ_l |f(g_l)|,    l over the m state gates and the input gate

Such rows keep every state within the largest of |h0| and |v| (Proposition 1 of the paper).

    softmax   exp(g) / Σ exp(g)                 rows sum to one
    hardmax   1 at the first of the largest g   rows sum to one; the gradient is that of softmax
    sigmoid   σ(g) / Σ σ(g)                     rows sum to one; computed as softmax(log σ(g)),
                                                which never divides 0 by 0
    relu      relu(g) / Σ (relu(g) + 1e-3)      rows sum to less than one
    tanh, linear, silu                          signed, f(g) / max(Σ |f(g)|, 1e-3): absolute values
                                                sum to one, except near all-zero gates
    none      g                                 no bound

This module is the only place that defines gate functions (see `register_normaliser`). If the
kernels of a device lack one, its scans run in plain torch.

The vector-Jacobian products are explicit because kernels and backward ops run below autograd.
With the row's dot product r = Σ_l w_l dw_l,

    dg_j = f'(g_j) · (dw_j − sign(f_j) · r · ∂Z/∂|f|) / Z.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from statemix.ops import check
from statemix.ops.precision import state_dtype

__all__ = [
    "NORMALISERS",
    "Normaliser",
    "find_normaliser",
    "normalise",
    "register_normaliser",
]

RELU_EPSILON = 1e-3
SIGNED_FLOOR = 1e-3


@dataclass(frozen=True)
class Normaliser:
    """A gate function and its vector-Jacobian product.

    `saturates` is True if large gates select a single entry of a row.
    """

    forward: Callable[[Tensor], Tensor]
    vjp: Callable[[Tensor, Tensor], Tensor]
    saturates: bool = False


def _softmax(g: Tensor) -> Tensor:
    return torch.softmax(g, -1)


def _softmax_vjp(g: Tensor, dw: Tensor) -> Tensor:
    w = torch.softmax(g, -1)
    return w * (dw - _row_dot(w, dw))


def _hardmax(g: Tensor) -> Tensor:
    """The one-hot row of the largest entry, the first among equals; backwards it is softmax."""
    soft = torch.softmax(g, -1)
    hard = F.one_hot(g.argmax(-1), g.shape[-1]).to(g.dtype)
    return hard + (soft - soft.detach())


def _sigmoid(g: Tensor) -> Tensor:
    return torch.softmax(F.logsigmoid(g), -1)


def _sigmoid_vjp(g: Tensor, dw: Tensor) -> Tensor:
    w = _sigmoid(g)
    return torch.sigmoid(-g) * w * (dw - _row_dot(w, dw))


def _relu(g: Tensor) -> Tensor:
    f = torch.relu(g)
    return f / _relu_total(f)


def _relu_vjp(g: Tensor, dw: Tensor) -> Tensor:
    f = torch.relu(g)
    Z = _relu_total(f)
    return torch.where(g > 0, (dw - _row_dot(f / Z, dw)) / Z, torch.zeros_like(dw))


def _relu_total(f: Tensor) -> Tensor:
    return (f + RELU_EPSILON).sum(-1, keepdim=True)


def _signed(
    f: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor], *, saturates: bool = False
) -> Normaliser:
    """The L1 normaliser of a signed function `f` with the derivative `slope`."""

    def forward(g: Tensor) -> Tensor:
        fg = f(g)
        return fg / fg.abs().sum(-1, keepdim=True).clamp(min=SIGNED_FLOOR)

    def vjp(g: Tensor, dw: Tensor) -> Tensor:
        fg = f(g)
        total = fg.abs().sum(-1, keepdim=True)
        Z = total.clamp(min=SIGNED_FLOOR)
        above = (total >= SIGNED_FLOOR).to(g.dtype)
        return slope(g) * (dw - above * fg.sign() * _row_dot(fg / Z, dw)) / Z

    return Normaliser(forward, vjp, saturates)


def _silu_slope(g: Tensor) -> Tensor:
    s = torch.sigmoid(g)
    return s * (1 + g * (1 - s))


def _row_dot(w: Tensor, dw: Tensor) -> Tensor:
    return (w * dw).sum(-1, keepdim=True)


NORMALISERS: dict[str, Normaliser] = {
    "softmax": Normaliser(_softmax, _softmax_vjp, saturates=True),
    "hardmax": Normaliser(_hardmax, _softmax_vjp, saturates=True),
    "sigmoid": Normaliser(_sigmoid, _sigmoid_vjp, saturates=True),
    "relu": Normaliser(_relu, _relu_vjp),
    "tanh": _signed(torch.tanh, lambda g: 1 - torch.tanh(g) ** 2, saturates=True),
    "linear": _signed(lambda g: g, torch.ones_like),
    "silu": _signed(F.silu, _silu_slope),
    "none": Normaliser(lambda g: g.clone(), lambda g, dw: dw.clone()),
}


def register_normaliser(
    name: str,
    forward: Callable[[Tensor], Tensor],
    vjp: Callable[[Tensor, Tensor], Tensor] | None = None,
    *,
    saturates: bool = False,
) -> None:
    """Register a gate function as `name` for all scans and layers; its scans run in plain torch.

    Args:
        forward: map raw gates (..., m + 1) to weights, normalised over the last axis.
        vjp: map (gates, dweights) to dgates; derived from `forward` by torch if None.
        saturates: True if large gates select a single entry, so that a layer can be sharpened.
    """
    if name in NORMALISERS:
        raise ValueError(f"The gate function {name!r} already exists. Choose another name.")
    NORMALISERS[name] = Normaliser(forward, vjp or _derived_vjp(forward), saturates)


def _derived_vjp(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def vjp(g: Tensor, dw: Tensor) -> Tensor:
        pull_back = torch.func.vjp(forward, g)[1]
        return pull_back(dw)[0]

    return vjp


def find_normaliser(gate: str) -> Normaliser:
    """The entry of `NORMALISERS` named `gate`."""
    check.check_choice("gate function", gate, NORMALISERS)
    return NORMALISERS[gate]


def normalise(
    gates: Float[Tensor, "*rows m_plus_1"], gate: str = "softmax"
) -> Float[Tensor, "*rows m_plus_1"]:
    """Normalise the last axis of `gates` with the gate function named `gate`.

    The computation is in float32 or better, and the result is rounded once to the dtype of `gates`.
    """
    check.check_floating("gates", gates)
    return find_normaliser(gate).forward(gates.to(state_dtype(gates))).to(gates.dtype)
