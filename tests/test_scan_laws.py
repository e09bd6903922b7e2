"""Laws that hold for every scan, at sizes drawn by hypothesis."""

import pytest
import torch
from cases import CASES, EACH_SCAN, Case, bounds, random_mask
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

SIZES = {
    "B": st.sampled_from([1, 2, 3]),
    "T": st.sampled_from([0, 1, 2, 3, 17]),
    "n": st.sampled_from([1, 3]),
    "m": st.sampled_from([1, 2, 3, 5]),
    "seed": st.integers(0, 2**16),
}
every_scan = pytest.mark.parametrize("case", EACH_SCAN, ids=str)
every_gate = pytest.mark.parametrize("case", CASES, ids=str)


def close(actual, expected) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-11)


def with_gradients(
    run, inputs: list[Tensor], weights: Tensor, final_weights: Tensor
) -> tuple[Tensor, ...]:
    """Compute h, the final state, and the gradients of a weighted sum of both."""
    leaves = [y.detach().clone().requires_grad_() for y in inputs]
    h, final = run(*leaves)
    loss = (h * weights).sum() + (final * final_weights).sum()
    return h.detach(), final.detach(), *torch.autograd.grad(loss, leaves, materialize_grads=True)


@every_gate
@given(**SIZES)
def test_scans_match_their_definition(case: Case, B, T, n, m, seed):
    inputs = case.inputs(B, T, n, m, seed=seed)
    weights, final_weights = (
        torch.randn_like(case.output_like(*inputs[:2])),
        torch.randn_like(inputs[2]),
    )
    close(
        with_gradients(case.scan, inputs, weights, final_weights),
        with_gradients(case.loop, inputs, weights, final_weights),
    )


@every_scan
@given(**SIZES, cut=st.integers(0, 17))
def test_splitting_time_changes_nothing(case: Case, B, T, n, m, seed, cut):
    cut = min(cut, T)

    def split(X, x, h0):
        h1, middle = case.scan(X[:, :cut], x[:, :cut], h0)
        h2, final = case.scan(X[:, cut:], x[:, cut:], middle)
        return torch.cat([h1, h2], 1), final

    inputs = case.inputs(B, T, n, m, seed=seed)
    weights, final_weights = (
        torch.randn_like(case.output_like(*inputs[:2])),
        torch.randn_like(inputs[2]),
    )
    close(
        with_gradients(split, inputs, weights, final_weights),
        with_gradients(case.scan, inputs, weights, final_weights),
    )


@every_scan
@given(
    lengths=st.lists(st.sampled_from([0, 1, 2, 5, 9]), min_size=1, max_size=5),
    n=SIZES["n"],
    m=SIZES["m"],
    seed=SIZES["seed"],
    reverse=st.booleans(),
    masked=st.booleans(),
)
def test_packed_sequences_are_independent(case: Case, lengths, n, m, seed, reverse, masked):
    T, N = sum(lengths), len(lengths)
    mask = random_mask(1, T, seed) if masked else None
    cu_seqlens = bounds(lengths, torch.int32 if seed % 2 else torch.int64)

    def packed(X, x, h0):
        return case.scan(X, x, h0, cu_seqlens=cu_seqlens, mask=mask, reverse=reverse)

    def separate(X, x, h0):
        runs = []
        for i, (start, stop) in enumerate(
            zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)
        ):
            part = slice(start, stop)
            kept = None if mask is None else mask[:, part]
            runs.append(
                case.scan(X[:, part], x[:, part], h0[i : i + 1], mask=kept, reverse=reverse)
            )
        return torch.cat([h for h, _ in runs], 1), torch.cat([final for _, final in runs])

    inputs = case.inputs(1, T, n, m, S=N, seed=seed)
    weights, final_weights = (
        torch.randn_like(case.output_like(*inputs[:2])),
        torch.randn_like(inputs[2]),
    )
    close(
        with_gradients(packed, inputs, weights, final_weights),
        with_gradients(separate, inputs, weights, final_weights),
    )


@every_gate
@given(
    T=st.sampled_from([1, 2, 9]),
    n=SIZES["n"],
    m=SIZES["m"],
    seed=SIZES["seed"],
    reverse=st.booleans(),
)
def test_padding_changes_nothing_even_if_it_holds_nan(case: Case, T, n, m, seed, reverse):
    """Masked NaN steps between T real ones change no output, state or gradient."""
    longer = 2 * T + 3
    real = torch.randperm(longer, generator=torch.Generator().manual_seed(seed))[:T].sort().values
    mask = torch.zeros(1, longer, dtype=torch.bool)
    mask[0, real] = True

    def spread(y: Tensor) -> Tensor:
        return torch.full((1, longer, *y.shape[2:]), torch.nan, dtype=y.dtype).index_copy(
            1, real, y
        )

    def padded(X, x, h0):
        h, final = case.scan(spread(X), spread(x), h0, mask=mask, reverse=reverse)
        return h[:, real], final

    inputs = case.inputs(1, T, n, m, seed=seed)
    weights, final_weights = (
        torch.randn_like(case.output_like(*inputs[:2])),
        torch.randn_like(inputs[2]),
    )
    alone = with_gradients(
        lambda *y: case.scan(*y, reverse=reverse), inputs, weights, final_weights
    )
    close(with_gradients(padded, inputs, weights, final_weights), alone)


@every_scan
@given(**SIZES)
def test_masked_steps_hold_the_state(case: Case, B, T, n, m, seed):
    """A masked output repeats the last real one, which receives its gradient."""
    X, x, h0 = case.inputs(B, T, n, m, seed=seed)
    mask = random_mask(B, T, seed)
    h, _ = case.scan(X, x, h0, mask=mask)
    before = h0 if case.block or case.expanded else h0[..., 0]
    for t in range(T):
        held = ~mask[:, t]
        close(h[held, t], before[held])
        before = h[:, t]
    leaf = h0.clone().requires_grad_()
    nothing_real = case.scan(X, x, leaf, mask=torch.zeros_like(mask))
    (dh0,) = torch.autograd.grad(nothing_real[0].sum() + nothing_real[1].sum(), leaf)
    expected = (
        torch.full_like(h0, 1.0 + T)
        if case.block or case.expanded
        else torch.ones_like(h0).index_add(2, torch.tensor([0]), torch.full_like(h0[..., :1], T))
    )
    close(dh0, expected)


@every_scan
@given(**SIZES, masked=st.booleans())
def test_reverse_flips_time(case: Case, B, T, n, m, seed, masked):
    mask = random_mask(B, T, seed) if masked else None

    def flipped(X, x, h0):
        h, final = case.scan(X.flip(1), x.flip(1), h0, mask=None if mask is None else mask.flip(1))
        return h.flip(1), final

    inputs = case.inputs(B, T, n, m, seed=seed)
    weights, final_weights = (
        torch.randn_like(case.output_like(*inputs[:2])),
        torch.randn_like(inputs[2]),
    )
    reverse = with_gradients(
        lambda *y: case.scan(*y, mask=mask, reverse=True), inputs, weights, final_weights
    )
    close(reverse, with_gradients(flipped, inputs, weights, final_weights))


@every_scan
@given(**SIZES, factor=st.floats(-3, 3))
def test_linear_in_driver_and_state(case: Case, B, T, n, m, seed, factor):
    X, x, h0 = case.inputs(B, T, n, m, seed=seed)
    _, y, k0 = case.inputs(B, T, n, m, seed=seed + 1)
    joint = case.scan(X, x + factor * y, h0 + factor * k0)
    first, second = case.scan(X, x, h0), case.scan(X, y, k0)
    close(joint, tuple(p + factor * q for p, q in zip(first, second, strict=True)))


@every_scan
@given(B=SIZES["B"], n=SIZES["n"], m=SIZES["m"], seed=SIZES["seed"], t=st.integers(0, 8))
def test_causal(case: Case, B, n, m, seed, t):
    X, x, h0 = case.inputs(B, 9, n, m, seed=seed)
    other, y, _ = case.inputs(B, 9, n, m, seed=seed + 1)
    h, _ = case.scan(X, x, h0)
    changed, _ = case.scan(
        torch.cat([X[:, : t + 1], other[:, t + 1 :]], 1),
        torch.cat([x[:, : t + 1], y[:, t + 1 :]], 1),
        h0,
    )
    close(changed[:, : t + 1], h[:, : t + 1])


@every_scan
def test_the_default_initial_state_is_zero(case: Case):
    X, x, h0 = case.inputs(2, 5, 3, 3)
    close(case.scan(X, x), case.scan(X, x, torch.zeros_like(h0)))
    cu_seqlens = bounds([2, 0, 3], torch.int32)
    close(
        case.scan(X[:1], x[:1], cu_seqlens=cu_seqlens),
        case.scan(X[:1], x[:1], torch.zeros(3, 3, 3).double(), cu_seqlens=cu_seqlens),
    )


@every_scan
def test_nan_stays_in_its_own_sequence(case: Case):
    """NaN in one packed sequence does not affect the others, forward or backward."""
    X, x, h0 = case.inputs(1, 9, 2, 3, S=3)
    x[:, 3:5] = torch.nan
    leaves = [y.requires_grad_() for y in (X, x, h0)]
    h, final = case.scan(*leaves, cu_seqlens=bounds([3, 2, 4]))
    assert h[:, :3].isfinite().all()
    assert h[:, 5:].isfinite().all()
    assert final[[0, 2]].isfinite().all()
    gradients = torch.autograd.grad(h[:, :3].sum() + h[:, 5:].sum() + final[[0, 2]].sum(), leaves)
    for gradient in gradients[:2]:
        assert gradient[:, :3].isfinite().all()
        assert gradient[:, 5:].isfinite().all()
    assert gradients[2][[0, 2]].isfinite().all()


@every_scan
def test_nan_and_inf_propagate(case: Case):
    for poison in (torch.nan, torch.inf):
        X, x, h0 = case.inputs(2, 6, 2, 3)
        x[0, 2] = poison
        h, final = case.scan(X, x, h0)
        newest = h[..., 0] if case.expanded else h
        assert h[0, :2].isfinite().all()
        assert not newest[0, 2].isfinite().any()
        assert not final[0].isfinite().all()
        assert h[1].isfinite().all()


@every_scan
@pytest.mark.parametrize("T", [0, 1, 6])
def test_outputs_share_no_memory(case: Case, T):
    """Writing into the final state changes neither the outputs nor the initial state."""
    for dtype in (torch.float64, torch.float32):
        X, x, h0 = case.inputs(2, T, 2, 3, dtype=dtype)
        h, final = case.scan(X, x, h0)
        kept, kept_start = h.clone(), h0.clone()
        final.fill_(99)
        torch.testing.assert_close(h, kept, rtol=0, atol=0)
        torch.testing.assert_close(h0, kept_start, rtol=0, atol=0)


@every_scan
def test_inference_mode(case: Case):
    inputs = case.inputs(2, 5, 2, 3)
    with torch.inference_mode():
        close(case.scan(*inputs), case.scan(*inputs))
