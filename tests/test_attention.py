"""Attention: against a plain loop over queries and keys, and against the laws of a mixer."""

import math

import pytest
import torch
from cases import bounds

from statemix.layers.baselines import Attention
from statemix.layers.trace import trace

D = 24
KINDS = {
    "full": {"heads": 3},
    "grouped": {"heads": 6, "kv_heads": 2},
    "one key head": {"heads": 2, "kv_heads": 1},
    "window of five": {"heads": 3, "window": 5},
    "grouped, window of two": {"heads": 6, "kv_heads": 3, "window": 2},
    "window of one": {"heads": 2, "window": 1},
}
EACH = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)


def build(options):
    torch.manual_seed(0)
    mixer = Attention(D, **options).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def draw(*shape):
    return torch.randn(*shape, D, dtype=torch.float64)


def rotated(vector, t, base):
    """`vector` as complex numbers, each multiplied by e^{i t θ}."""
    half = len(vector) // 2
    theta = torch.tensor([base ** (-2 * i / len(vector)) for i in range(half)], dtype=vector.dtype)
    turned = torch.complex(vector[:half], vector[half:]) * torch.exp(1j * t * theta)
    return torch.cat([turned.real, turned.imag])


def loop(mixer, x):
    """The outputs for one sequence x (T, d), from the equations, one query and key at a time."""
    H, G, e = mixer.heads, mixer.kv_heads, mixer.head_dim
    rows = (x @ mixer.W_qkv.weight.T).view(len(x), H + 2 * G, e)
    outputs = []
    for t in range(len(x)):
        heads = []
        for head in range(H):
            group = head // (H // G)
            first = 0 if mixer.window is None else max(0, t - mixer.window + 1)
            q = rotated(rows[t, head], t, mixer.base)
            keys = [rotated(rows[s, H + group], s, mixer.base) for s in range(first, t + 1)]
            weights = torch.stack([torch.exp(q @ k / math.sqrt(e)) for k in keys])
            values = rows[first : t + 1, H + G + group]
            heads.append((weights / weights.sum()) @ values)
        outputs.append(mixer.W_o.weight @ torch.cat(heads))
    return torch.stack(outputs)


def exactly(a, b):
    torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def row_of(state, row):
    """The real keys and values of one row, and its number of steps."""
    keys, values, steps = state
    count = min(int(steps[row]), keys.shape[1])
    return [keys[row, keys.shape[1] - count :], values[row, values.shape[1] - count :], steps[row]]


@EACH
def test_forward_and_gradients_equal_the_loop(options):
    mixer, x = build(options), draw(2, 11).requires_grad_()
    inputs = [x, *mixer.parameters()]
    y, _ = mixer(x)
    truth = torch.stack([loop(mixer, row) for row in x])
    exactly(y, truth)
    weights = torch.randn_like(y)
    ours, theirs = (torch.autograd.grad((z * weights).sum(), inputs) for z in (y, truth))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * float(b.abs().max()))


@EACH
def test_stepping_and_splitting_equal_the_loop(options):
    mixer, x = build(options), draw(2, 11)
    truth = torch.stack([loop(mixer, row) for row in x])
    state, outputs = None, []
    for t in range(11):
        y_t, state = mixer.step(x[:, t], state)
        outputs.append(y_t)
    exactly(torch.stack(outputs, 1), truth)
    first, middle = mixer(x[:, :4])
    second, final = mixer(x[:, 4:], middle)
    exactly(torch.cat([first, second], 1), truth)
    exactly(list(final), list(state))


@EACH
def test_packed_equals_the_loop_and_continues(options):
    mixer, lengths = build(options), [5, 0, 1, 9]
    x, rest = draw(1, 15).requires_grad_(), draw(4, 3)
    y, state = mixer(x, cu_seqlens=bounds(lengths))
    parts = list(x[0].split(lengths))
    truth = torch.cat([loop(mixer, part) for part in parts if len(part)])
    exactly(y[0], truth)
    ours, theirs = (torch.autograd.grad((z**2).sum(), x)[0] for z in (y[0], truth))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))
    after, final = mixer(rest, state)
    for row, part in enumerate(parts):
        exactly(after[row], loop(mixer, torch.cat([part, rest[row]]))[len(part) :])
        _, alone = mixer(torch.cat([part, rest[row]])[None])
        exactly(row_of(final, row), row_of(alone, 0))


MASKS = {
    "right": torch.arange(9) < torch.tensor([9, 4, 0])[:, None],
    "left": torch.arange(9) >= torch.tensor([9, 5, 0])[:, None],
    "holes": torch.arange(9) % torch.tensor([1, 2, 3])[:, None] == 0,
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@EACH
def test_masked_steps_have_no_effect(options, mask):
    mixer, x, rest = build(options), draw(3, 9), draw(3, 7)
    filled = torch.where(mask[..., None], x, torch.nan).requires_grad_()
    y, state = mixer(filled, mask=mask)
    more = torch.rand(3, 7) > 0.5
    after, final = mixer(rest, state, mask=more)
    for row in range(3):
        real = torch.cat([x[row, mask[row]], rest[row, more[row]]])
        truth = loop(mixer, real) if len(real) else draw(0)
        exactly(torch.cat([y[row, mask[row]], after[row, more[row]]]), truth)
        exactly(row_of(final, row), row_of(mixer(real[None])[1], 0))
    (after[more].sum() + y[mask].sum()).backward()
    assert filled.grad.isfinite().all()
    assert (filled.grad[~mask] == 0).all()
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


@EACH
def test_any_earlier_state_continues_as_if_the_rest_had_not_been_read(options):
    """Rolling back: `trace` and `step` leave all earlier states usable."""
    mixer, x, other = build(options), draw(2, 8), draw(2, 4)
    _, start = mixer(x[:, :3])
    y, states = trace(mixer, x[:, 3:], start)
    exactly(y, mixer(x[:, 3:], start)[0])
    for count, state in enumerate(states, 4):
        ours, _ = mixer(other, state)
        exactly(ours, mixer(torch.cat([x[:, :count], other], 1))[0][:, count:])


@EACH
def test_a_trace_with_a_mask_equals_the_forward_pass(options):
    mixer, x, mask = build(options), draw(2, 6), torch.rand(2, 6) > 0.4
    y, states = trace(mixer, x, mask=mask)
    truth, final = mixer(x, mask=mask)
    exactly(y, truth)
    for row in range(2):
        exactly(row_of(states[-1], row), row_of(final, row))


@pytest.mark.parametrize("kind", ["full", "grouped", "one key head"])
def test_positions_matter_only_by_their_distance(kind):
    """A state moved to a later step, with its keys rotated along, leads to the same outputs."""
    mixer, x = build(KINDS[kind]), draw(1, 6)
    far = 10_000
    _, (keys, values, steps) = mixer(x[:, :4])
    pairs = torch.arange(mixer.head_dim // 2, dtype=torch.float64)
    theta = mixer.base ** (-2 * pairs / mixer.head_dim)
    a, b = keys.chunk(2, -1)
    cos, sin = (far * theta).cos(), (far * theta).sin()
    moved = (torch.cat([a * cos - b * sin, a * sin + b * cos], -1), values, steps + far)
    ours, truth = (mixer(x[:, 4:], state)[0] for state in (moved, (keys, values, steps)))
    torch.testing.assert_close(ours, truth, rtol=1e-9, atol=1e-9)


def test_a_window_bounds_the_state():
    mixer = build({"heads": 2, "kv_heads": 1, "window": 7})
    _, state = mixer(draw(3, 40))
    assert state[0].numel() + state[1].numel() == 3 * mixer.state_size
    _, state = build({"heads": 2, "kv_heads": 1})(draw(3, 40))
    per_step = build({"heads": 2, "kv_heads": 1}).state_size
    assert state[0].numel() + state[1].numel() == 3 * 40 * per_step


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_float32(dtype):
    mixer, x = build({"heads": 6, "kv_heads": 2}).float(), draw(2, 40).float()
    truth, _ = mixer(x)
    y, state = mixer.to(dtype)(x[:, :-1].to(dtype))
    y_t, _ = mixer.step(x[:, -1].to(dtype), state)
    y = torch.cat([y, y_t[:, None]], 1).float()
    assert (y - truth).norm() < 0.1 * truth.norm()


def test_autocast_gives_outputs_and_gradients():
    mixer, x = build({"heads": 3}).float(), draw(2, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, state = mixer(x[:, :8])
        second, _ = mixer(x[:, 8:], state)
    (y.sum() + second.sum()).backward()
    truth, _ = mixer(x)
    assert (torch.cat([y, second], 1).float() - truth).norm() < 0.1 * truth.norm()
    assert all(p.grad.isfinite().all() for p in mixer.parameters())


def test_empty_batches():
    mixer = build({"heads": 3})
    for x, options in (
        (draw(1, 0), {"cu_seqlens": torch.tensor([0])}),
        (draw(0, 3), {"mask": torch.ones(0, 3, dtype=torch.bool)}),
        (draw(2, 0), {}),
    ):
        y, state = mixer(x, **options)
        assert y.shape == x.shape
        assert all(len(each) == (2 if not options else 0) for each in state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 5}, "`heads` must divide d_model = 24 into heads of even width, got 5"),
        ({"heads": 8}, "`heads` must divide d_model = 24 into heads of even width, got 8"),
        ({"heads": 4, "kv_heads": 3}, "`kv_heads` must divide `heads` = 4, got 3"),
        ({"window": 0}, "`window` must be at least 1, got 0"),
        ({"base": 1.0}, "`base` must be finite and above 1, got 1.0"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range_raise(options, message):
    with pytest.raises(ValueError, match=message):
        Attention(D, **options)


def test_a_state_of_another_batch_size_raises():
    mixer = build({"heads": 3})
    _, state = mixer(draw(1, 3))
    with pytest.raises(ValueError, match="one row per sequence: expected 2, got 1"):
        mixer(draw(2, 3), state)
