"""DeltaNet, Gated DeltaNet and DeltaProduct: generalised Householder transition matrices."""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Integer
from torch import Tensor, nn

from statemix.layers.baselines.lru import draw_delta_bias, row_mask
from statemix.layers.baselines.matrix import matrix_scan
from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import ReadsTables, register_mixer
from statemix.layers.unit import check_sizes
from statemix.ops.check import check_choice
from statemix.ops.lookup import Lookup, at_each_step

__all__ = ["DeltaNet", "DeltaProduct", "DeltaRule", "GatedDeltaNet"]

State = tuple[Float[Tensor, "B heads d_v d_k"], Float[Tensor, "B k c"] | None]


class DeltaRule(RaggedMixer, ReadsTables):
    """A gated delta rule with several heads and `products` steps per token.

        q, k_i, v_i, β_i, α = projections of x,    |q| = |k_i| = 1,    i = 1 .. products
        S ← α S,    S ← S (I − β_i k_i k_iᵀ) + β_i v_i k_iᵀ for each i
        y[t] = W_out (norm(S q) ⊙ silu(z))

    A state is (S (B, heads, head_dim, head_dim), the convolution's inputs).

    The form "fla" is that of flash-linear-attention, whose models the paper compares with:

        log α = − a softplus(W_α x + b),    a ~ U(0, 16),    softplus(b) log-uniform in [0.001, 0.1]
        |q| = head_dim^(−1/2), and q, k_i, v_i pass through SiLU, with or without a convolution

    In the form "plain", log α = log sigmoid(W_α x + b), which starts at α = 1/2, and |q| = 1.

    Args:
        heads: number of heads.
        head_dim: number of rows and columns of each head's S.
        products: steps per token; with n steps a token can apply a product of n reflections.
        gated: use a learned decay α; otherwise α = 1.
        negative_eigenvalues: let β reach 2, so that a step can be a reflection; otherwise 1.
        conv: steps of the short convolution (0: none).
        output_gate: multiply the output by silu(z).
        form: "plain" or "fla", as above.
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        head_dim: int,
        products: int,
        gated: bool,
        negative_eigenvalues: bool,
        conv: int,
        output_gate: bool,
        form: str,
    ) -> None:
        super().__init__()
        check_choice("form", form, ("plain", "fla"))
        is_fla = form == "fla"
        check_sizes(
            {"d_model": d_model, "heads": heads, "head_dim": head_dim, "products": products}
        )
        self.d_model = d_model
        self.heads = heads
        self.head_dim = head_dim
        self.products = products
        self.largest = 2.0 if negative_eigenvalues else 1.0
        inner = heads * head_dim
        self.W_qkv = make_linear(d_model, inner * (1 + 2 * products), bias=False)
        self.form = form
        self.conv = make_short_conv(inner * (1 + 2 * products), conv, bias=not is_fla)
        self.W_beta = make_linear(d_model, heads * products, bias=False)
        self.W_alpha = make_linear(d_model, heads) if gated else None
        if self.W_alpha is not None and is_fla:
            self.log_a = nn.Parameter(torch.log(16 * (1 - torch.rand(heads))))
            with torch.no_grad():
                self.W_alpha.bias.copy_(draw_delta_bias(heads))
        self.W_z = make_linear(d_model, inner, bias=False) if output_gate else None
        self.norm = nn.RMSNorm(head_dim, eps=1e-5)
        self.W_out = make_linear(inner, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """Number of scalars in S and in the inputs of the convolution."""
        inner = self.heads * self.head_dim
        inputs = (self.conv.size - 1) * inner * (1 + 2 * self.products) if self.conv else 0
        return inner * self.head_dim + inputs

    def run(
        self,
        x: Float[Tensor, "B T d"] | Lookup,
        state: State | None,
        lengths: Integer[Tensor, " B"] | None,
    ) -> tuple[Float[Tensor, "B T d"], State]:
        """Run all rows, each up to its length.

        The n products of a token become n steps of a sequence of length n T; the output is read at
        the last of them.
        """
        S, before = (None, None) if state is None else state
        B, T, _ = x.shape
        qkv = at_each_step(self.W_qkv, x)
        if self.conv is not None:
            qkv, before = self.conv(qkv, before, lengths)
        elif self.form == "fla":
            qkv = F.silu(qkv)
        n = self.products
        q, k, v = qkv.unflatten(2, (1 + 2 * n, self.heads, self.head_dim)).split([1, n, n], 2)
        k = self._normalise(k.flatten(1, 2))
        v = v.flatten(1, 2)
        beta = self.largest * torch.sigmoid(at_each_step(self.W_beta, x)).view(B, T * n, self.heads)
        log_alpha = qkv.new_zeros((B, T, n, self.heads))
        if self.W_alpha is not None:
            decay = self._log_decay(at_each_step(self.W_alpha, x)).unsqueeze(2)
            log_alpha = torch.cat([decay, log_alpha[:, :, 1:]], 2)
        q = self._normalise(q) * (self.head_dim**-0.5 if self.form == "fla" else 1.0)
        q = q.expand(-1, -1, n, -1, -1).flatten(1, 2)
        real = row_mask(qkv, lengths)
        real = None if real is None else real.repeat_interleave(n, 1)
        o, S = matrix_scan(q, k, v, beta, log_alpha.flatten(1, 2), S, real)
        o = self.norm(o[:, n - 1 :: n].to(self.norm.weight.dtype)).flatten(2)
        y = o if self.W_z is None else o * F.silu(at_each_step(self.W_z, x))
        return self.W_out(y), (S, before)

    def _normalise(self, x: Tensor) -> Tensor:
        """The vectors x divided by their length."""
        if self.form == "plain":
            return F.normalize(x, dim=-1)
        return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)

    def _log_decay(self, raw: Tensor) -> Tensor:
        """log α from W_α x + b."""
        return F.logsigmoid(raw) if self.form == "plain" else -self.log_a.exp() * F.softplus(raw)


@register_mixer("deltanet")
class DeltaNet(DeltaRule):
    """`DeltaRule` without a decay, with one step per token."""

    def __init__(
        self,
        d_model: int,
        heads: int = 2,
        head_dim: int = 32,
        negative_eigenvalues: bool = True,
        conv: int = 4,
        output_gate: bool = True,
        form: str = "plain",
    ) -> None:
        super().__init__(
            d_model, heads, head_dim, 1, False, negative_eigenvalues, conv, output_gate, form
        )


@register_mixer("gated_deltanet")
class GatedDeltaNet(DeltaRule):
    """`DeltaRule` with a decay and one step per token."""

    def __init__(
        self,
        d_model: int,
        heads: int = 2,
        head_dim: int = 32,
        negative_eigenvalues: bool = True,
        conv: int = 4,
        output_gate: bool = True,
        form: str = "plain",
    ) -> None:
        super().__init__(
            d_model, heads, head_dim, 1, True, negative_eigenvalues, conv, output_gate, form
        )


@register_mixer("deltaproduct")
class DeltaProduct(DeltaRule):
    """`DeltaRule` with a decay and `products` steps per token."""

    def __init__(
        self,
        d_model: int,
        heads: int = 2,
        head_dim: int = 32,
        products: int = 4,
        negative_eigenvalues: bool = True,
        conv: int = 4,
        output_gate: bool = True,
        form: str = "plain",
    ) -> None:
        super().__init__(
            d_model, heads, head_dim, products, True, negative_eigenvalues, conv, output_gate, form
        )
