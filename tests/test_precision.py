"""Dtypes: states in at least float32, outputs in the inputs' dtype, and small errors."""

import pytest
import torch
from cases import EACH_SCAN, GATED_BLOCK, PLAIN, Case

LOW = [torch.bfloat16, torch.float16]
every_scan = pytest.mark.parametrize("case", EACH_SCAN, ids=str)


@every_scan
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *LOW])
def test_dtypes(case: Case, dtype):
    inputs = [x.requires_grad_() for x in case.inputs(2, 9, 3, 3, dtype=dtype)]
    h, final = case.scan(*inputs)
    assert h.dtype == dtype
    assert final.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for gradient, x in zip(
        torch.autograd.grad(h.float().sum() + final.sum(), inputs), inputs, strict=True
    ):
        assert gradient.dtype == dtype
        assert gradient.shape == x.shape


@every_scan
@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_is_float32_rounded_once(case: Case, dtype):
    inputs = case.inputs(2, 40, 3, 3, dtype=dtype)
    h, final = case.scan(*inputs)
    exact, exact_final = case.scan(*[x.float() for x in inputs])
    torch.testing.assert_close(h, exact.to(dtype), rtol=0, atol=0)
    torch.testing.assert_close(final, exact_final, rtol=0, atol=0)


@every_scan
@pytest.mark.parametrize("dtype", LOW)
def test_splitting_time_in_low_precision_changes_nothing(case: Case, dtype):
    """The final state is float32, so continuing from it loses no precision."""
    X, x, h0 = case.inputs(2, 20, 3, 3, dtype=dtype)
    h, final = case.scan(X, x, h0)
    first, middle = case.scan(X[:, :7], x[:, :7], h0)
    second, last = case.scan(X[:, 7:], x[:, 7:], middle)
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if case.name == "hop_scan" else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(last, final, **tolerance)
    if case.name != "hop_scan":  # a tree sums in a different order after a split
        torch.testing.assert_close(torch.cat([first, second], 1), h, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
@pytest.mark.parametrize("case", [*PLAIN, GATED_BLOCK[0]], ids=str)
def test_errors_are_at_most_twice_those_of_plain_torch(case: Case, dtype):
    """Errors of outputs and gradients are at most twice those of the definition in that dtype."""

    def run(scan, dtype):
        inputs = [
            x.to(dtype).requires_grad_() for x in case.inputs(2, 64, 4, 3, dtype=dtype, seed=11)
        ]
        h, final = scan(*inputs)
        weights = torch.linspace(-1, 1, h.numel(), dtype=torch.float64).view(h.shape)
        loss = (h.double() * weights).sum() + final.double().sum()
        return [y.detach().double() for y in (h, final, *torch.autograd.grad(loss, inputs))]

    rounded = [x.to(dtype) for x in case.inputs(2, 64, 4, 3, dtype=dtype, seed=11)]

    def exact():
        inputs = [x.double().requires_grad_() for x in rounded]
        h, final = case.loop(*inputs)
        weights = torch.linspace(-1, 1, h.numel(), dtype=torch.float64).view(h.shape)
        return [
            y.detach()
            for y in (h, final, *torch.autograd.grad((h * weights).sum() + final.sum(), inputs))
        ]

    for ours, theirs, truth in zip(
        run(case.scan, dtype), run(case.loop, dtype), exact(), strict=True
    ):
        assert (ours - truth).norm() <= 2 * (theirs - truth).norm()


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    "case", [case for case in EACH_SCAN if case.name.startswith("gated")], ids=str
)
def test_gradients_of_gates_if_states_are_close_together(case: Case, dtype):
    """Gradients of gates use differences of states, which are computed before any rounding."""
    gates, v, h0 = case.inputs(2, 64, 4, 4, dtype=dtype, seed=5)
    v, h0, dh = (3 + 0.1 * v).to(dtype), torch.full_like(h0, 3), torch.randn(v.shape).to(dtype)

    def gradient(kind):
        own = gates.to(kind, copy=True).requires_grad_()
        (found,) = torch.autograd.grad(case.scan(own, v.to(kind), h0.to(kind))[0], own, dh.to(kind))
        return found

    exact, rounded = gradient(torch.float64), gradient(torch.float32).to(dtype).double()
    assert (gradient(dtype).double() - exact).norm() <= 1.01 * (rounded - exact).norm()


def test_mixed_dtypes_promote():
    X, x, h0 = PLAIN[0].inputs(1, 4, 2, 2)
    h, final = PLAIN[0].scan(X.bfloat16(), x.float(), h0.half())
    assert (h.dtype, final.dtype) == (torch.float32, torch.float32)
    h, final = PLAIN[0].scan(X.bfloat16(), x, h0.half())
    assert (h.dtype, final.dtype) == (torch.float64, torch.float64)


def test_matmul_precision_settings_change_nothing():
    """Users may trade matmul precision for speed elsewhere; states stay float32."""
    inputs = PLAIN[0].inputs(2, 40, 3, 4, dtype=torch.float32)
    before = PLAIN[0].scan(*inputs)
    torch.set_float32_matmul_precision("medium")
    try:
        torch.testing.assert_close(PLAIN[0].scan(*inputs), before, rtol=0, atol=0)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_autocast_does_not_change_states():
    """Autocast casts matrix products to bfloat16, but no scan uses them."""
    for case in EACH_SCAN:
        inputs = case.inputs(2, 40, 3, 4, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            inside = case.scan(*inputs)
        torch.testing.assert_close(inside, case.scan(*inputs), rtol=0, atol=0)
