"""From raw gates to a row whose absolute values sum to at most one.

    w_j = f(g_j) / Z(g),      Z = Σ_l |f(g_l)|,      over the m state gates and the input gate together

Such rows keep every state within the largest of |h0| and |v| (Proposition 1 of the paper).

    softmax   exp(g) / Σ exp(g)               rows sum to one
    sigmoid   σ(g) / Σ σ(g)                   rows sum to one; computed as softmax(log σ(g)), so it never divides 0 by 0
    relu      relu(g) / Σ (relu(g) + 1e-3)    rows sum to less than one
    tanh, linear, silu                        signed f(g) / max(Σ |f(g)|, 1e-3): |rows| sum to one, except near all-zero gates
    none      g                               no bound

The vector-Jacobian products are written out because kernels and backward ops run below autograd.
With r = Σ_l w_l dw_l the row's dot product,

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

RELU_EPSILON = 1e-3
SIGNED_FLOOR = 1e-3


@dataclass(frozen=True)
class Normaliser:
    """One gate function: gates to weights, and its vector-Jacobian product."""

    forward: Callable[[Tensor], Tensor]
    vjp: Callable[[Tensor, Tensor], Tensor]


def softmax(g: Tensor) -> Tensor:
    return torch.softmax(g, -1)


def softmax_vjp(g: Tensor, dw: Tensor) -> Tensor:
    w = torch.softmax(g, -1)
    return w * (dw - row_dot(w, dw))


def sigmoid(g: Tensor) -> Tensor:
    return torch.softmax(F.logsigmoid(g), -1)


def sigmoid_vjp(g: Tensor, dw: Tensor) -> Tensor:
    w = sigmoid(g)
    return torch.sigmoid(-g) * w * (dw - row_dot(w, dw))


def relu(g: Tensor) -> Tensor:
    f = torch.relu(g)
    return f / relu_total(f)


def relu_vjp(g: Tensor, dw: Tensor) -> Tensor:
    f = torch.relu(g)
    Z = relu_total(f)
    return torch.where(g > 0, (dw - row_dot(f / Z, dw)) / Z, torch.zeros_like(dw))


def relu_total(f: Tensor) -> Tensor:
    return (f + RELU_EPSILON).sum(-1, keepdim=True)


def signed(f: Callable[[Tensor], Tensor], slope: Callable[[Tensor], Tensor]) -> Normaliser:
    """The L1 normaliser of a signed `f` whose derivative is `slope`."""

    def forward(g: Tensor) -> Tensor:
        fg = f(g)
        return fg / fg.abs().sum(-1, keepdim=True).clamp(min=SIGNED_FLOOR)

    def vjp(g: Tensor, dw: Tensor) -> Tensor:
        fg = f(g)
        total = fg.abs().sum(-1, keepdim=True)
        Z = total.clamp(min=SIGNED_FLOOR)
        above = (total >= SIGNED_FLOOR).to(g.dtype)
        return slope(g) * (dw - above * fg.sign() * row_dot(fg / Z, dw)) / Z

    return Normaliser(forward, vjp)


def silu_slope(g: Tensor) -> Tensor:
    s = torch.sigmoid(g)
    return s * (1 + g * (1 - s))


def row_dot(w: Tensor, dw: Tensor) -> Tensor:
    return (w * dw).sum(-1, keepdim=True)


NORMALISERS: dict[str, Normaliser] = {
    "softmax": Normaliser(softmax, softmax_vjp),
    "sigmoid": Normaliser(sigmoid, sigmoid_vjp),
    "relu": Normaliser(relu, relu_vjp),
    "tanh": signed(torch.tanh, lambda g: 1 - torch.tanh(g) ** 2),
    "linear": signed(lambda g: g, torch.ones_like),
    "silu": signed(F.silu, silu_slope),
    "none": Normaliser(lambda g: g.clone(), lambda g, dw: dw.clone()),
}


def find_normaliser(gate: str) -> Normaliser:
    """The entry of `NORMALISERS` named `gate`."""
    check.check_choice("gate function", gate, NORMALISERS)
    return NORMALISERS[gate]


def normalise(
    gates: Float[Tensor, "*rows m_plus_1"], gate: str = "softmax"
) -> Float[Tensor, "*rows m_plus_1"]:
    """Normalise the last axis of `gates` with the gate function named `gate`, in float32 or better, rounded once to their dtype."""
    check.check_floating("gates", gates)
    return find_normaliser(gate).forward(gates.to(state_dtype(gates))).to(gates.dtype)
