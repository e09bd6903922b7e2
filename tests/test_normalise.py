"""Gate functions: row sums, limits, gradients, and the bound on states (Proposition 1)."""

import pytest
import torch
from cases import straight_through
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from statemix.ops import (
    NORMALISERS,
    companion_scan,
    gated_block_scan,
    gated_companion_scan,
    normalise,
)

BOUNDED = [gate for gate in NORMALISERS if gate != "none"]
SIGNED = ["tanh", "linear", "silu"]
gates_of = pytest.mark.parametrize("gate", NORMALISERS)


@pytest.mark.parametrize("gate", BOUNDED)
@given(
    m=st.integers(1, 6),
    scale=st.sampled_from([1e-6, 0.1, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 2**16),
)
def test_rows_sum_to_at_most_one(gate, m, scale, seed):
    gates = scale * torch.randn(
        20, m + 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    total = normalise(gates, gate).abs().sum(-1)
    assert (total <= 1 + 1e-12).all()
    if gate in ("softmax", "hardmax", "sigmoid"):
        torch.testing.assert_close(total, torch.ones_like(total))
        assert (normalise(gates, gate) >= 0).all()


def test_published_formulae():
    """The formulae of the paper and its code, for gates at which they do not divide by zero."""
    g = torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    s, r = torch.sigmoid(g), torch.relu(g)
    expected = {
        "softmax": g.exp() / g.exp().sum(-1, keepdim=True),
        "hardmax": torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64),
        "sigmoid": s / s.sum(-1, keepdim=True),
        "relu": r / (r + 1e-3).sum(-1, keepdim=True),
        "tanh": g.tanh() / g.tanh().abs().sum(-1, keepdim=True),
        "linear": g / g.abs().sum(-1, keepdim=True),
        "silu": g * s / (g * s).abs().sum(-1, keepdim=True),
        "none": g,
    }
    assert set(expected) == set(NORMALISERS)
    for gate, w in expected.items():
        torch.testing.assert_close(normalise(g, gate), w)


@gates_of
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_zero_gates_are_finite(gate, dtype):
    gates = torch.zeros(4, 5, dtype=dtype, requires_grad=True)
    w = normalise(gates, gate)
    assert w.dtype == dtype
    assert w.isfinite().all()
    (dgates,) = torch.autograd.grad(w.sum() + w[:, 0].sum(), gates)
    assert dgates.isfinite().all()


@gates_of
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_extreme_gates_are_finite(gate, size):
    gates = torch.full((3, 4), size, requires_grad=True)
    w = normalise(gates, gate)
    (dgates,) = torch.autograd.grad(w[:, 0].sum(), gates)
    assert w.isfinite().all()
    assert dgates.isfinite().all()


@pytest.mark.parametrize("gate", ["softmax", "sigmoid"])
def test_minus_infinity_closes_a_gate(gate):
    w = normalise(torch.tensor([[0.0, -torch.inf, 0.0]]), gate)
    assert w.tolist() == [[0.5, 0.0, 0.5]]


def test_hardmax_selects_the_first_of_the_largest_gates():
    gates = torch.tensor([[-torch.inf, 0.0, 0.0], [1.0, 0.5, 1.0], [-2.0, -3.0, -1.0]])
    assert normalise(gates, "hardmax").tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    gates[0, 2] = torch.nan
    assert normalise(gates, "hardmax")[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_hardmax_has_the_gradient_of_softmax(dtype):
    """The weights are those of the largest gate, exactly; the gradient is that of the softmax."""
    gates = (3 * torch.randn(50, 4, dtype=dtype)).requires_grad_()
    dw = torch.randn(50, 4, dtype=dtype)
    w = normalise(gates, "hardmax")
    assert torch.equal(w, straight_through(gates))
    assert torch.equal(w.sum(-1), torch.ones(50, dtype=dtype))
    (dgates,) = torch.autograd.grad(w, gates, dw)
    torch.testing.assert_close(dgates, torch.autograd.grad(gates.softmax(-1), gates, dw)[0])
    torch.testing.assert_close(
        dgates, torch.autograd.grad(straight_through(gates), gates, dw)[0], rtol=0, atol=0
    )


def test_relu_rows_may_sum_to_less_than_one():
    assert normalise(torch.tensor([[-1.0, -2.0]]), "relu").abs().sum() == 0
    assert normalise(torch.tensor([[1e-3, -2.0]]), "relu").sum() < 0.5


@gates_of
def test_vjp_matches_autograd(gate):
    gates = (3 * torch.randn(50, 4, dtype=torch.float64)).requires_grad_()
    dw = torch.randn(50, 4, dtype=torch.float64)
    (expected,) = torch.autograd.grad(normalise(gates, gate), gates, dw)
    torch.testing.assert_close(NORMALISERS[gate].vjp(gates.detach(), dw), expected)
    if gate in SIGNED:  # also below the floor of the denominator
        small = (1e-4 * torch.randn(50, 4, dtype=torch.float64)).requires_grad_()
        (expected,) = torch.autograd.grad(normalise(small, gate), small, dw)
        torch.testing.assert_close(NORMALISERS[gate].vjp(small.detach(), dw), expected)


@pytest.mark.parametrize("gate", [gate for gate in NORMALISERS if gate != "hardmax"])
def test_gradcheck(gate):
    """All but hardmax, whose gradient is an estimate."""
    gates = (torch.randn(3, 4, dtype=torch.float64) + 0.1).requires_grad_()
    assert gradcheck(lambda g: normalise(g, gate), gates)


def biggest_state(scan, gates, v, h0, gate):
    h, final = scan(gates, v, h0, gate=gate)
    assert h.isfinite().all()
    return max(h.abs().max().item(), final.abs().max().item())


@pytest.mark.parametrize("gate", BOUNDED)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@given(
    m=st.sampled_from([1, 2, 3, 5]),
    scale=st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    seed=st.integers(0, 2**16),
)
def test_proposition_1(gate, dtype, m, scale, seed):
    """|h| ≤ max(|h0|, |v|), up to one rounding of the output.

    Inputs are ±1 at random, the worst case that the bound allows.
    """
    draw = torch.Generator().manual_seed(seed)
    T, n = 60, 2

    def signs(*shape):
        return (torch.randint(0, 2, shape, generator=draw) * 2 - 1).to(dtype)

    def raw(*shape):
        return (scale * torch.randn(*shape, generator=draw)).to(dtype)

    limit = 1 + 4 * T * torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps
    assert (
        biggest_state(
            gated_block_scan, raw(2, T, n, m, m + 1), signs(2, T, n, m), signs(2, n, m), gate
        )
        <= limit
    )
    assert (
        biggest_state(
            gated_companion_scan, raw(2, T, n, m + 1), signs(2, T, n), signs(2, n, m), gate
        )
        <= limit
    )


@pytest.mark.parametrize("scan", [gated_block_scan, gated_companion_scan])
@pytest.mark.parametrize("memory", [0.0, 12.0], ids=["short memory", "long memory"])
def test_proposition_1_over_a_hundred_thousand_steps(scan, memory, unchecked):
    """Rounding errors do not accumulate over 100,000 float32 steps.

    This holds with short and with long memory (input gates near e^-12).
    """
    T, m = 100_000, 3
    rows = (1, T, 2, m) if scan is gated_block_scan else (1, T, 2)
    gates = torch.randn(*rows, m + 1)
    gates[..., -1] -= memory
    v = torch.randint(0, 2, rows) * 2.0 - 1
    assert biggest_state(scan, gates, v, torch.ones(1, 2, m), "softmax") <= 1 + 1e-5


@pytest.mark.parametrize("scan", [gated_block_scan, gated_companion_scan])
def test_proposition_1_where_rounding_compounds(scan, unchecked):
    """The worst case: a constant row whose float32 sum exceeds 1, with a closed input gate."""
    T, m = 100_000, 3
    row = torch.tensor([2.324712038040161, -1.290027141571045, -0.8556503057479858, -30.0])
    rows = (1, T, 1, m) if scan is gated_block_scan else (1, T, 1)
    limit = (1 + (m + 2) * torch.finfo(torch.float32).eps) ** T
    assert (
        biggest_state(
            scan, row.expand(*rows, m + 1), torch.zeros(rows), torch.ones(1, 1, m), "softmax"
        )
        <= limit
    )


def test_low_precision_gates_are_normalised_in_float32():
    """Sums do not overflow float16, and rows are rounded once."""
    assert normalise(torch.full((1, 4), 6e4).half(), "linear").tolist() == [[0.25] * 4]
    gates = torch.randn(100, 5).bfloat16()
    for gate in NORMALISERS:
        torch.testing.assert_close(
            normalise(gates, gate), normalise(gates.float(), gate).bfloat16(), rtol=0, atol=0
        )


LONE_GATES = {
    "softmax": (60.0, -60.0),
    "hardmax": (1e-3, 0.0),
    "sigmoid": (3.0, -200.0),
    "tanh": (0.7, 0.0),
    "linear": (41.0, 0.0),
    "silu": (41.0, -200.0),
}


@pytest.mark.parametrize("gate", LONE_GATES)
def test_a_saturated_permutation_is_exact(gate):
    """A gate that is alone in its row is exactly one, so a state is permuted without any error.

    Multiplying by 1 / Z instead of dividing by Z would not do: 41 · (1 / 41) is not one.
    """
    T, m = 8192, 3
    open_gate, shut = LONE_GATES[gate]
    gates = torch.full((1, T, 1, m, m + 1), shut)
    for i in range(m):
        gates[..., i, (i + 1) % m] = open_gate
    h0 = torch.tensor([[[0.1, 0.7, -0.3]]])
    h, _ = gated_block_scan(gates, torch.randn(1, T, 1, m), h0, gate=gate)
    expected = torch.stack([h0.roll(-(t + 1), -1) for t in range(T)], 1)
    torch.testing.assert_close(h, expected, rtol=0, atol=0)
    lags = torch.full((1, T, 1, m + 1), shut)
    lags[..., m - 1] = open_gate
    y, _ = gated_companion_scan(lags, torch.randn(1, T, 1), h0, gate=gate)
    torch.testing.assert_close(y[0, :, 0], h0[0, 0].flip(0).repeat(T // m + 1)[:T], rtol=0, atol=0)


def test_none_has_no_bound():
    gates = torch.full((1, 50, 1, 1, 2), 1.5)
    assert biggest_state(gated_block_scan, gates, torch.ones(1, 50, 1, 1), None, "none") > 1e6


def test_the_observer_form_breaks_the_bound():
    """If rows sum to one, controller states stay within the inputs; observer states do not."""
    generator = torch.Generator().manual_seed(0)
    gates = 3 * torch.randn(1, 200, 50, 5, generator=generator)
    v = torch.randint(0, 2, (1, 200, 50), generator=generator) * 2.0 - 1
    w = normalise(gates)
    controller, _ = companion_scan(w[..., :-1], w[..., -1] * v, form="controller")
    observer, _ = companion_scan(w[..., :-1], w[..., -1] * v, form="observer")
    assert controller.abs().max() <= 1 + 1e-5
    assert observer.abs().max() > 1.5
