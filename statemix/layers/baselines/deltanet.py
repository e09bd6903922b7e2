"""DeltaNet, Gated DeltaNet and DeltaProduct: states that are rewritten by Householder-like steps, with eigenvalues down to −1."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statemix.layers.baselines.lru import row_mask
from statemix.layers.baselines.matrix import matrix_scan
from statemix.layers.baselines.ragged import RaggedMixer, make_short_conv
from statemix.layers.gates import make_linear
from statemix.layers.mixer import register_mixer
from statemix.layers.unit import check_sizes

State = tuple[Tensor, Tensor | None]


class DeltaRule(RaggedMixer):
    """Heads of a gated delta rule with `products` steps a token.

        q, k_i, v_i, β_i, α = projections of x,    |q| = |k_i| = 1,    i = 1 .. products
        S ← α S,    S ← S (I − β_i k_i k_iᵀ) + β_i v_i k_iᵀ for each i,    y[t] = W_out (norm(S q) ⊙ silu(z))

    A state is (S (B, heads, head_dim, head_dim), the convolution's inputs).

    Args:
        heads: heads.
        head_dim: rows and columns of a head's S.
        products: steps a token; with n of them a token can apply a product of n reflections.
        gated: learn a decay α, else α = 1.
        negative_eigenvalues: β up to 2, so that a step can reflect; else up to 1.
        conv: steps of the short convolution, 0 for none.
        output_gate: multiply by silu(z).
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
    ) -> None:
        super().__init__()
        check_sizes(
            {"d_model": d_model, "heads": heads, "head_dim": head_dim, "products": products}
        )
        self.d_model, self.heads, self.head_dim, self.products = d_model, heads, head_dim, products
        self.largest = 2.0 if negative_eigenvalues else 1.0
        inner = heads * head_dim
        self.W_qkv = make_linear(d_model, inner * (1 + 2 * products), bias=False)
        self.conv = make_short_conv(inner * (1 + 2 * products), conv)
        self.W_beta = make_linear(d_model, heads * products, bias=False)
        self.W_alpha = make_linear(d_model, heads) if gated else None
        self.W_z = make_linear(d_model, inner, bias=False) if output_gate else None
        self.norm = nn.RMSNorm(head_dim, eps=1e-5)
        self.W_out = make_linear(inner, d_model, bias=False)

    @property
    def state_size(self) -> int:
        """S, and the inputs that the convolution still sees."""
        inner = self.heads * self.head_dim
        return inner * self.head_dim + (
            (self.conv.size - 1) * inner * (1 + 2 * self.products) if self.conv else 0
        )

    def run(self, x: Tensor, state: State | None, lengths: Tensor | None) -> tuple[Tensor, State]:
        """All rows, each up to its length; a token's products are steps of a longer sequence, read at the last."""
        S, before = (None, None) if state is None else state
        B, T, _ = x.shape
        qkv = self.W_qkv(x)
        if self.conv is not None:
            qkv, before = self.conv(qkv, before, lengths)
        n, shape = self.products, (self.heads, self.head_dim)
        q, k, v = qkv.unflatten(2, (1 + 2 * n, *shape)).split([1, n, n], 2)
        k, v = F.normalize(k.flatten(1, 2), dim=-1), v.flatten(1, 2)
        beta = self.largest * torch.sigmoid(self.W_beta(x)).view(B, T * n, self.heads)
        log_alpha = x.new_zeros((B, T, n, self.heads))
        if self.W_alpha is not None:
            log_alpha = torch.cat(
                [F.logsigmoid(self.W_alpha(x)).unsqueeze(2), log_alpha[:, :, 1:]], 2
            )
        q = F.normalize(q, dim=-1).expand(-1, -1, n, -1, -1).flatten(1, 2)
        real = row_mask(x, lengths)
        real = None if real is None else real.repeat_interleave(n, 1)
        o, S = matrix_scan(q, k, v, beta, log_alpha.flatten(1, 2), S, real)
        o = self.norm(o[:, n - 1 :: n].to(self.norm.weight.dtype)).flatten(2)
        y = o if self.W_z is None else o * F.silu(self.W_z(x))
        return self.W_out(y), (S, before)


@register_mixer("deltanet")
class DeltaNet(DeltaRule):
    """`DeltaRule` without a decay, one step a token."""

    def __init__(
        self,
        d_model: int,
        heads: int = 2,
        head_dim: int = 32,
        negative_eigenvalues: bool = True,
        conv: int = 4,
        output_gate: bool = True,
    ) -> None:
        super().__init__(
            d_model, heads, head_dim, 1, False, negative_eigenvalues, conv, output_gate
        )


@register_mixer("gated_deltanet")
class GatedDeltaNet(DeltaRule):
    """`DeltaRule` with a decay, one step a token."""

    def __init__(
        self,
        d_model: int,
        heads: int = 2,
        head_dim: int = 32,
        negative_eigenvalues: bool = True,
        conv: int = 4,
        output_gate: bool = True,
    ) -> None:
        super().__init__(d_model, heads, head_dim, 1, True, negative_eigenvalues, conv, output_gate)


@register_mixer("deltaproduct")
class DeltaProduct(DeltaRule):
    """`DeltaRule` with a decay and `products` steps a token."""

    def __init__(
        self,
        d_model: int,
        heads: int = 2,
        head_dim: int = 32,
        products: int = 4,
        negative_eigenvalues: bool = True,
        conv: int = 4,
        output_gate: bool = True,
    ) -> None:
        super().__init__(
            d_model, heads, head_dim, products, True, negative_eigenvalues, conv, output_gate
        )
