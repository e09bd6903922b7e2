"""Invalid input: the error names the argument, the expectation and the value."""

import re

import pytest
import torch

from statemix import (
    BDLRU,
    HLRU,
    LanguageModel,
    LMConfig,
    block_scan,
    companion_scan,
    gated_block_scan,
    gated_companion_scan,
    hop_scan,
)
from statemix.models import next_token_loss
from statemix.ops import normalise

pytestmark = pytest.mark.usefixtures("unchecked")
A, b, h0 = torch.zeros(2, 5, 2, 3, 3), torch.zeros(2, 5, 2, 3), torch.zeros(2, 2, 3)
a, c = torch.zeros(2, 5, 2, 3), torch.zeros(2, 5, 2)
block_gates, channel_gates = torch.zeros(2, 5, 2, 3, 4), torch.zeros(2, 5, 2, 4)
x = torch.zeros(2, 5, 8)
packed = (A[:1], b[:1])
mask = torch.ones(2, 5, dtype=torch.bool)
MODEL, W = (
    LanguageModel(LMConfig(10, 8, 1, options={"n_blocks": 2, "block_size": 3})),
    torch.zeros(10, 8),
)


def cu(*bounds, dtype=torch.int64):
    return torch.tensor(bounds, dtype=dtype)


ERRORS = [
    # shapes that don't match
    (lambda: block_scan(A, b, torch.zeros(2, 3)), "`initial_state` must match `b`, whose shape is (2, 5, 2, 3): expected (2, 2, 3), got (2, 3)."),
    (lambda: block_scan(A[:, :4], b), "`A` must match `b`, whose shape is (2, 5, 2, 3): expected (2, 5, 2, 3, 3), got (2, 4, 2, 3, 3)."),
    (lambda: hop_scan(A[..., :2], b), "`A` must match `b`, whose shape is (2, 5, 2, 3): expected (2, 5, 2, 3, 3), got (2, 5, 2, 3, 2)."),
    (lambda: block_scan(A, b[0]), "`b` must have the axes (B, T, n, m), got the shape (5, 2, 3)."),
    (lambda: block_scan(A, torch.tensor(1.0)), "`b` must have the axes (B, T, n, m), got the shape ()."),
    (lambda: companion_scan(a[:1], c), "`a` must match `b`, whose shape is (2, 5, 2): expected (2, 5, 2, 3), got (1, 5, 2, 3)."),
    (lambda: companion_scan(torch.tensor(1.0), c), "`a` must have the axes (B, T, n, m), got the shape ()."),
    (lambda: companion_scan(a, b), "`b` must have the axes (B, T, n), got the shape (2, 5, 2, 3)."),
    (lambda: gated_block_scan(A, b), "`gates` must match `v`, whose shape is (2, 5, 2, 3): expected (2, 5, 2, 3, 4), got (2, 5, 2, 3, 3)."),
    (lambda: gated_companion_scan(channel_gates, c[:, :4]), "`gates` must match `v`, whose shape is (2, 4, 2): expected (2, 4, 2, 4)"),
    # m = 0
    (lambda: block_scan(A[..., :0, :0], b[..., :0]), "The block size m must be at least 1, got 0 from the last axis of `b`."),
    (lambda: companion_scan(a[..., :0], c), "The order m must be at least 1, got 0 from the last axis of `a`."),
    (lambda: gated_companion_scan(channel_gates[..., :1], c), "The order m must be at least 1, got 0 from the last axis of `gates`."),
    (lambda: BDLRU(8, 2, 0), "`block_size` must be at least 1, got 0."),
    (lambda: HLRU(8, 0, 3), "`n_channels` must be at least 1, got 0."),
    # dtypes
    (lambda: block_scan(A.int(), b), "`A` must be floating point, got torch.int32. Convert with A.float()."),
    (lambda: block_scan(A, b.to(torch.complex64)), "`b` must be real: complex numbers are not supported, got torch.complex64."),
    (lambda: BDLRU(8, 2, 3, dtype=torch.int32), "`dtype` must be floating point, got torch.int32."),
    # no tensors
    (lambda: BDLRU(8, 2, 3)(x.numpy()), "`x` must be a tensor, got ndarray."),
    (lambda: BDLRU(8, 2, 3)(x, (h0, h0)), "`state` must be a tensor, got tuple."),
    (lambda: block_scan(A, b, mask=[True]), "`mask` must be a tensor, got list."),
    (lambda: MODEL(None), "`tokens` must be a tensor, got NoneType."),
    # tokens
    (lambda: MODEL(torch.zeros(3, dtype=torch.long)), "`tokens` must have the axes (B, T), got the shape (3,)."),
    (lambda: MODEL.step(torch.zeros(3, 1, dtype=torch.long)), "`tokens_t` must have the axes (B), got the shape (3, 1)."),
    (lambda: next_token_loss(x, W, torch.full((2, 5), 10)), "A target must be in 0 .. 9, the rows of the head, or -100, got 10. Use the tokenizer that the model was trained with."),
    (lambda: next_token_loss(x, W, torch.full((2, 5), -1)), "A target must be in 0 .. 9, the rows of the head, or -100, got -1. Use the tokenizer that the model was trained with."),
    (lambda: block_scan(A, b, h0.long()), "`initial_state` must be floating point, got torch.int64."),
    (lambda: normalise(torch.zeros(3, dtype=torch.int64)), "`gates` must be floating point, got torch.int64."),
    (lambda: BDLRU(8, 2, 3)(x.long()), "`x` must be floating point, got torch.int64."),
    # devices
    (lambda: block_scan(A.to("meta"), b), "`A` must be on the device of `b`, cpu, got meta. Move it with A.to(b.device)."),
    (lambda: block_scan(A, b, h0.to("meta")), "`initial_state` must be on the device of `b`, cpu, got meta."),
    (lambda: block_scan(A, b, mask=mask.to("meta")), "`mask` must be on the device of `b`, cpu, got meta."),
    # packing
    (lambda: block_scan(*packed, cu_seqlens=cu(1, 5)), "`cu_seqlens` must start at 0, got 1 first."),
    (lambda: block_scan(*packed, cu_seqlens=cu(0, 3, 2, 5)), "`cu_seqlens` must not decrease, got 3 then 2 at index 2."),
    (lambda: block_scan(*packed, cu_seqlens=cu(0, 3, 6)), "`cu_seqlens` must end at T = 5, the length of the packed batch, got 6."),
    (lambda: hop_scan(*packed, cu_seqlens=cu(0, 3, 4)), "`cu_seqlens` must end at T = 5, the length of the packed batch, got 4."),
    (lambda: companion_scan(a[:1], c[:1], cu_seqlens=cu(0, 6, 5)), "`cu_seqlens` must not decrease, got 6 then 5 at index 2."),
    (lambda: block_scan(A, b, cu_seqlens=cu(0, 5)), "`cu_seqlens` packs sequences into a batch of one: expected B = 1, got B = 2."),
    (lambda: block_scan(*packed, cu_seqlens=cu(0.0, 5.0, dtype=torch.float32)), "`cu_seqlens` must be a vector of N + 1 int32 or int64 bounds"),
    (lambda: block_scan(*packed, cu_seqlens=cu()), "`cu_seqlens` must be a vector of N + 1 int32 or int64 bounds, from 0 to T, got the shape (0,)"),
    (lambda: block_scan(*packed, h0[:1], cu_seqlens=cu(0, 2, 5)), "`initial_state` must match `b`, whose shape is (1, 5, 2, 3): expected (2, 2, 3), got (1, 2, 3)."),
    # masks
    (lambda: block_scan(A, b, mask=mask[:, :4]), "`mask` must have one entry per step: expected (2, 5), got (2, 4)."),
    (lambda: gated_block_scan(block_gates, b, mask=mask.long()), "`mask` must be torch.bool, True at real steps, got torch.int64. Convert with mask.bool()."),
    # names
    (lambda: normalise(a, "sotfmax"), "Unknown gate function 'sotfmax'. Available: softmax, hardmax, sigmoid, relu, tanh, linear, silu, none."),
    (lambda: gated_block_scan(block_gates, b, gate="exp"), "Unknown gate function 'exp'. Available: softmax, hardmax, sigmoid, relu, tanh, linear, silu, none."),
    (lambda: BDLRU(8, 2, 3, gate="exp"), "Unknown gate function 'exp'. Available: softmax, hardmax, sigmoid, relu, tanh, linear, silu, none."),
    (lambda: HLRU(8, 2, 3, selectivity="some"), "Unknown selectivity 'some'. Available: full, pointwise, none."),
    (lambda: HLRU(8, 2, 3, form="modal"), "Unknown form 'modal'. Available: controller, observer."),
    (lambda: companion_scan(a, c, form="modal"), "Unknown form 'modal'. Available: controller, observer."),
    # layers
    (lambda: BDLRU(8, 2, 3)(x[..., :7]), "`x` must have the axes (B, T, d) with d = 8, got the shape (2, 5, 7)."),
    (lambda: HLRU(8, 2, 3).step(x), "`x_t` must have the axes (B, d) with d = 8, got the shape (2, 5, 8)."),
    (lambda: BDLRU(8, 2, 3)(x, torch.zeros(2, 3, 2)), "`state` must match `x`, whose shape is (2, 5, 8): expected (2, 2, 3), got (2, 3, 2)."),
    (lambda: HLRU(8, 2, 3).step(x[:, 0], torch.zeros(1, 2, 3)), "`state` must match `x_t`, whose shape is (2, 8): expected (2, 2, 3), got (1, 2, 3)."),
    (lambda: BDLRU(8, 2, 3)(x.double()), "`x` must have the dtype of the layer, torch.float32, got torch.float64. Convert one of them"),
    (lambda: BDLRU(8, 2, 3)(x, h0, cu_seqlens=cu(0, 5)), "`cu_seqlens` packs sequences into a batch of one: expected B = 1, got B = 2."),
    (lambda: BDLRU(8, 2, 3)(x[:1], cu_seqlens=torch.tensor(5)), "`cu_seqlens` must be a vector of N + 1 int32 or int64 bounds"),
    (lambda: BDLRU(8, 2, 3)(x[:1], cu_seqlens=[0, 5]), "`cu_seqlens` must be a tensor of bounds, got list. Convert with torch.tensor(cu_seqlens)."),
    (lambda: HLRU(8, 2, 3)(x, mask=mask[:, :4]), "`mask` must have one entry per step: expected (2, 5), got (2, 4)."),
    (lambda: gated_companion_scan(channel_gates[0], c), "`gates` must have the axes (B, T, n, m + 1), got the shape (5, 2, 4)."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "message"), ERRORS, ids=[message[:60] for _, message in ERRORS])
def test_error(call, message):
    with pytest.raises((ValueError, TypeError, IndexError), match=re.escape(message)):
        call()


def test_unknown_names_of_the_package():
    import statemix

    with pytest.raises(
        AttributeError, match="module 'statemix' has no attribute 'BDRLU'. Available: BDLRU, HLRU"
    ):
        statemix.BDRLU  # noqa: B018
    assert set(statemix.__all__) == set(dir(statemix))
    for name in statemix.__all__:
        assert getattr(statemix, name) is not None
