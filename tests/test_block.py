"""Laws of the block recurrence, and both recurrences against a dense solve."""

import pytest
import torch
from cases import PLAIN, Case, bounds
from hypothesis import given
from hypothesis import strategies as st
from oracle import dense_block, dense_companion, loop_block, loop_companion

from statemix.ops import block_scan, block_step, companion_scan, companion_step, hop_scan
from statemix.ops.lags import companion_matrix

SEEDS = st.integers(0, 2**16)


def block_inputs(B, T, n, m, seed):
    return PLAIN[0].inputs(B, T, n, m, seed=seed)


@pytest.mark.parametrize("scan", [block_scan, hop_scan])
@given(
    B=st.integers(1, 2), T=st.integers(0, 9), n=st.integers(1, 3), m=st.integers(1, 5), seed=SEEDS
)
def test_equals_dense_solve(scan, B, T, n, m, seed):
    inputs = block_inputs(B, T, n, m, seed)
    torch.testing.assert_close(scan(*inputs), dense_block(*inputs))


@given(
    B=st.integers(1, 2), T=st.integers(0, 9), n=st.integers(1, 3), m=st.integers(1, 5), seed=SEEDS
)
def test_companion_equals_dense_solve(B, T, n, m, seed):
    inputs = PLAIN[2].inputs(B, T, n, m, seed=seed)
    torch.testing.assert_close(companion_scan(*inputs), dense_companion(*inputs))


@pytest.mark.parametrize("T", [0, 1, 2, 17, 63, 64, 65, 1000])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 7, 16])
@pytest.mark.parametrize("scan", [block_scan, hop_scan], ids=["block_scan", "hop_scan"])
def test_odd_sizes(scan, T, m):
    """Lengths, block sizes and numbers of blocks that no vector width divides."""
    n = {1: 20, 2: 3, 3: 8, 5: 1, 7: 3, 16: 1}[m]
    inputs = [x.requires_grad_() for x in block_inputs(2, T, n, m, seed=T + m)]
    h, final = scan(*inputs)
    expected, expected_final = loop_block(*inputs)
    torch.testing.assert_close((h, final), (expected, expected_final))
    gradients = torch.autograd.grad(h.sin().sum() + final.sum(), inputs, materialize_grads=True)
    torch.testing.assert_close(
        gradients,
        torch.autograd.grad(
            expected.sin().sum() + expected_final.sum(), inputs, materialize_grads=True
        ),
    )


@pytest.mark.parametrize("T", [0, 1, 2, 17, 1000])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 7, 16])
def test_companion_odd_sizes(T, m):
    """Orders above, at and below the length."""
    n = {1: 20, 2: 3, 3: 8, 5: 1, 7: 3, 16: 20}[m]
    inputs = [x.requires_grad_() for x in PLAIN[2].inputs(2, T, n, m, seed=T + m)]
    h, final = companion_scan(*inputs)
    expected, expected_final = loop_companion(*inputs)
    torch.testing.assert_close((h, final), (expected, expected_final))
    gradients = torch.autograd.grad(h.sin().sum() + final.sum(), inputs, materialize_grads=True)
    torch.testing.assert_close(
        gradients,
        torch.autograd.grad(
            expected.sin().sum() + expected_final.sum(), inputs, materialize_grads=True
        ),
    )


@pytest.mark.parametrize("scan", [block_scan, hop_scan])
@given(T=st.integers(1, 20), n=st.integers(1, 3), m=st.integers(1, 4), seed=SEEDS)
def test_zero_identity_and_diagonal(scan, T, n, m, seed):
    A, b, h0 = block_inputs(2, T, n, m, seed)
    eye = torch.eye(m, dtype=A.dtype)
    torch.testing.assert_close(scan(torch.zeros_like(A), b, h0)[0], b)
    torch.testing.assert_close(scan(eye.expand_as(A), b, h0)[0], b.cumsum(1) + h0[:, None])
    diagonal, _ = scan(A * eye, b, h0)
    scalar, _ = scan(
        A.diagonal(dim1=-2, dim2=-1).reshape(2, T, n * m, 1, 1),
        b.reshape(2, T, n * m, 1),
        h0.reshape(2, n * m, 1),
    )
    torch.testing.assert_close(diagonal.reshape(2, T, n * m, 1), scalar)


def test_matrix_carries_column_into_row():
    """A[..., i, j] carries h[j] into h[i]; with an asymmetric matrix, a transpose would show."""
    A = torch.tensor([[0.0, 2.0], [0.0, 0.0]]).view(1, 1, 1, 2, 2)
    h, final = block_scan(A, torch.zeros(1, 1, 1, 2), torch.tensor([[[1.0, 10.0]]]))
    assert h.flatten().tolist() == [20.0, 0.0]
    assert final.flatten().tolist() == [20.0, 0.0]


def test_time_runs_forward():
    """The matrix of step t multiplies the state of step t - 1, and then b is added."""
    A = torch.tensor([3.0, 5.0]).view(1, 2, 1, 1, 1)
    b = torch.tensor([1.0, 7.0]).view(1, 2, 1, 1)
    h, _ = block_scan(A, b, torch.full((1, 1, 1), 2.0))
    assert h.flatten().tolist() == [3 * 2 + 1, 5 * 7 + 7]


@given(
    T=st.integers(0, 12),
    n=st.integers(1, 3),
    m=st.integers(1, 5),
    seed=SEEDS,
    reverse=st.booleans(),
)
def test_companion_matrix_in_block_scan(T, n, m, seed, reverse):
    a, b, h0 = PLAIN[2].inputs(2, T, n, m, seed=seed)
    driver = torch.nn.functional.pad(b[..., None], (0, m - 1))
    s, final = block_scan(companion_matrix(a), driver, h0, reverse=reverse)
    h, companion_final = companion_scan(a, b, h0, reverse=reverse)
    torch.testing.assert_close((s[..., 0], final), (h, companion_final))
    s, final = block_scan(companion_matrix(a).mT, driver, h0, reverse=reverse)
    h, observer_final = companion_scan(a, b, h0, form="observer", reverse=reverse)
    torch.testing.assert_close((s[..., 0], final), (h, observer_final))


@given(T=st.integers(1, 12), m=st.integers(1, 5), seed=SEEDS)
def test_stepping_equals_scanning(T, m, seed):
    for case, step in ((PLAIN[0], block_step), (PLAIN[2], companion_step)):
        X, x, state = case.inputs(2, T, 3, m, seed=seed)
        h, final = case.scan(X, x, state)
        for t in range(T):
            state = step(X[:, t], x[:, t], state)
            torch.testing.assert_close(state if case.block else state[..., 0], h[:, t])
        torch.testing.assert_close(state, final)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_strided_and_expanded_inputs(case: Case):
    """Transposed, sliced and expanded tensors give the results of their contiguous copies."""
    X, x, h0 = case.inputs(2, 6, 3, 4)
    contiguous = case.scan(X, x, h0)
    strided = [y.transpose(0, 1).contiguous().transpose(0, 1) for y in (X, x, h0)]
    torch.testing.assert_close(case.scan(*strided), contiguous, rtol=0, atol=0)
    fixed = X[:1, :1].expand_as(X)
    torch.testing.assert_close(
        case.scan(fixed, x, h0), case.scan(fixed.contiguous(), x, h0), rtol=0, atol=0
    )


def test_inputs_are_not_modified():
    for case in PLAIN:
        inputs = case.inputs(1, 5, 2, 3, S=2)
        before = [x.clone() for x in inputs]
        case.scan(*inputs, cu_seqlens=bounds([2, 3]))
        torch.testing.assert_close(inputs, before, rtol=0, atol=0)
