"""Baselines: each against its explicit recurrence, and against the laws of a mixer."""

import pytest
import torch
import torch.nn.functional as F
from cases import bounds

from statemix import layers
from statemix.layers.baselines import (
    LRU,
    LSTM,
    PDSSM,
    RWKV7,
    Conv,
    DeltaNet,
    DeltaProduct,
    GatedDeltaNet,
    Mamba,
    Mamba2,
    Mamba3,
    SLiCE,
)
from statemix.layers.baselines.matrix import matrix_loop, matrix_scan
from statemix.layers.wrappers import Convolution, OutputGate, ShortConvolution

D = 6
BLOCKS = {"mixer": "bdlru", "n_blocks": 2, "block_size": 3}
MIXERS = {
    "lstm": lambda: LSTM(D, 5),
    "conv": lambda: Conv(D, 3),
    "conv of one": lambda: Conv(D, 1),
    "lru": lambda: LRU(D, 4),
    "mamba": lambda: Mamba(D, d_state=3),
    "mamba bare": lambda: Mamba(D, d_state=3, conv=0, output_gate=False),
    "mamba2": lambda: Mamba2(D, d_state=3, head_dim=4),
    "mamba2 bare": lambda: Mamba2(D, d_state=3, head_dim=4, conv=0, output_gate=False),
    "deltanet": lambda: DeltaNet(D, 2, 3),
    "gated deltanet": lambda: GatedDeltaNet(D, 2, 3, conv=0, output_gate=False),
    "deltaproduct": lambda: DeltaProduct(D, 2, 3, products=3),
    "mamba3": lambda: Mamba3(D, d_state=6, head_dim=4),
    "rwkv7": lambda: RWKV7(D, 3),
    "pdssm": lambda: PDSSM(D, 4),
    "slice": lambda: SLiCE(D, 3),
    "slice of increments": lambda: SLiCE(D, 2, path="increments"),
    "convolution": lambda: Convolution(D, 4),
    "short conv, bdlru": lambda: ShortConvolution(D, BLOCKS, kernel=4),
    "short conv of one, lstm": lambda: ShortConvolution(
        D, {"mixer": "lstm", "hidden": 3}, kernel=1
    ),
    "output gate, hlru": lambda: OutputGate(D, {"mixer": "hlru", "n_channels": 4, "order": 3}),
    "gate, conv, bdlru": lambda: OutputGate(D, {"mixer": "short_conv", "inner": BLOCKS}),
}
EACH = pytest.mark.parametrize("make", MIXERS.values(), ids=MIXERS)


def build(make):
    torch.manual_seed(0)
    mixer = make().double()
    # Nothing bounds the state of a SLiCE: with larger weights it grows to 1e15.
    std = 0.1 if isinstance(mixer, SLiCE) else 0.5
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return mixer


def flat(state):
    if isinstance(state, tuple):
        return [x for part in state for x in flat(part)]
    return [] if state is None else [state]


def assert_same_state(a, b):
    torch.testing.assert_close(flat(a), flat(b), rtol=1e-9, atol=1e-9)


def pick(state, row):
    if isinstance(state, tuple):
        return tuple(pick(part, row) for part in state)
    return None if state is None else state[row]


@EACH
def test_forward_equals_stepping(make):
    mixer, x = build(make), torch.randn(2, 70, D, dtype=torch.float64)
    y, final = mixer(x)
    state, outputs = None, []
    for t in range(70):
        y_t, state = mixer.step(x[:, t], state)
        outputs.append(y_t)
    torch.testing.assert_close(torch.stack(outputs, 1), y, rtol=1e-9, atol=1e-9)
    assert_same_state(state, final)


@EACH
def test_splitting_in_two_changes_nothing(make):
    mixer, x = build(make), torch.randn(2, 41, D, dtype=torch.float64)
    y, final = mixer(x)
    first, state = mixer(x[:, :17])
    second, state = mixer(x[:, 17:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), y, rtol=1e-9, atol=1e-9)
    assert_same_state(state, final)


@EACH
def test_packed_equals_separate_runs(make):
    mixer, lengths = build(make), [5, 0, 1, 9]
    x = torch.randn(1, 15, D, dtype=torch.float64, requires_grad=True)
    y, final = mixer(x, cu_seqlens=bounds(lengths))
    parts = [mixer(part) for part in x.split(lengths, 1)]
    torch.testing.assert_close(y, torch.cat([part[0] for part in parts], 1), rtol=1e-9, atol=1e-9)
    for row, (_, state) in enumerate(parts):
        assert_same_state(pick(final, slice(row, row + 1)), state)
    ours, theirs = (
        torch.autograd.grad((z**2).sum(), x)[0]
        for z in (y, torch.cat([mixer(p)[0] for p in x.split(lengths, 1)], 1))
    )
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


@EACH
def test_masked_steps_have_no_effect(make):
    mixer = build(make)
    x, mask = torch.randn(2, 12, D, dtype=torch.float64), torch.rand(2, 12) > 0.4
    mask[1] = False
    y, final = mixer(x, mask=mask)
    alone, state = mixer(x[:1, mask[0]])
    torch.testing.assert_close(y[:1, mask[0]], alone, rtol=1e-9, atol=1e-9)
    assert_same_state(pick(final, slice(0, 1)), state)
    assert_same_state(pick(final, slice(1, 2)), mixer(x[1:, :0])[1])


PADDED = {
    "right": torch.arange(9) < torch.tensor([9, 4, 0])[:, None],
    "left": torch.arange(9) >= torch.tensor([9, 5, 0])[:, None],
    "both sides": torch.arange(9).sub(4).abs() <= torch.tensor([1, 3, 4])[:, None],
}


@pytest.mark.parametrize("mask", PADDED.values(), ids=PADDED)
@EACH
def test_values_at_masked_steps_affect_no_output_or_gradient(make, mask):
    mixer, x = build(make), torch.randn(3, 9, D, dtype=torch.float64)

    def everything(fill):
        filled = torch.where(mask[..., None], x, fill).requires_grad_()
        y, state = mixer(filled, mask=mask)
        loss = (y[mask] ** 2).sum() + sum((s**2).sum() for s in flat(state))
        return [y[mask], *flat(state), *torch.autograd.grad(loss, [filled, *mixer.parameters()])]

    clean = everything(0.0)
    assert all(part.isfinite().all() for part in clean)
    torch.testing.assert_close(everything(torch.nan), clean, rtol=0, atol=0)


@EACH
def test_nan_in_a_packed_sequence_does_not_spread(make):
    mixer, lengths = build(make), [3, 1, 7]
    x = torch.randn(1, 11, D, dtype=torch.float64)

    def others(first):
        filled = torch.cat([torch.full_like(x[:, :3], first), x[:, 3:]], 1).requires_grad_()
        y, state = mixer(filled, cu_seqlens=bounds(lengths))
        kept = [y[:, 3:], *(s[1:] for s in flat(state))]
        return [*kept, torch.autograd.grad(sum((part**2).sum() for part in kept), filled)[0][:, 3:]]

    torch.testing.assert_close(others(torch.nan), others(0.0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (
                lambda cls=cls: cls(D, conv=-1),
                "`conv` must be a non-negative number of steps .*, got -1",
            )
            for cls in (Mamba, DeltaNet)
        ),
        (
            lambda: Mamba2(D, head_dim=4, conv=2.5),
            "`conv` must be a non-negative number of steps \\(0: no convolution\\), got 2.5",
        ),
        (
            lambda: LRU(D, 4, r_min=0.9, r_max=0.5),
            "must satisfy 0 <= r_min < r_max <= 1, got 0.9 and 0.5",
        ),
        (
            lambda: LRU(D, 4, r_max=float("nan")),
            "must satisfy 0 <= r_min < r_max <= 1, got 0.0 and nan",
        ),
        (
            lambda: LRU(D, 4, r_max=1.5),
            "must satisfy 0 <= r_min < r_max <= 1, got 0.0 and 1.5",
        ),
        (
            lambda: LRU(D, 4, max_phase=float("nan")),
            "`max_phase` must be an angle of at least 0, got nan",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_options_out_of_range_raise(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@EACH
def test_gradients(make):
    """Those of PD-SSM are estimates, which `test_recent_mixers.py` compares with an oracle's."""
    mixer, x = build(make), torch.randn(1, 6, D, dtype=torch.float64, requires_grad=True)
    if not isinstance(mixer, PDSSM):
        assert torch.autograd.gradcheck(lambda x: mixer(x)[0], x, atol=1e-6)
    mixer(x)[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mixer.parameters())


@EACH
def test_state_size_counts_the_state(make):
    mixer = build(make)
    _, state = mixer(torch.randn(3, 4, D, dtype=torch.float64))
    assert sum(x.numel() for x in flat(state)) == 3 * mixer.state_size


@EACH
def test_errors_name_wrong_inputs(make):
    with pytest.raises(
        ValueError,
        match=r"`x` must have the axes \(B, T, d\) with d = 6, got the shape \(2, 3, 5\)",
    ):
        build(make)(torch.randn(2, 3, 5))


@pytest.mark.parametrize("delta", [False, True], ids=["given", "delta rule"])
@pytest.mark.parametrize("T", [1, 31, 32, 33, 100])
def test_chunks_equal_the_recurrence(T, delta):
    shape = (2, T, 3)
    q, v = torch.randn(*shape, 4, dtype=torch.float64), torch.randn(*shape, 5, dtype=torch.float64)
    k = F.normalize(torch.randn(*shape, 4, dtype=torch.float64), dim=-1)
    beta = 2 * torch.rand(shape, dtype=torch.float64) if delta else None
    decay, S = -torch.rand(shape, dtype=torch.float64), torch.randn(2, 3, 5, 4, dtype=torch.float64)
    real = torch.rand(2, T) > 0.3
    inputs = [x.requires_grad_() for x in (q, k, v, decay, S, *([beta] if delta else []))]

    def everything(function):
        o, final = function(q, k, v, beta, decay, S, real)
        o = o * real[..., None, None]
        return [o, final, *torch.autograd.grad((o**2).sum() + (final**3).sum(), inputs)]

    for ours, truth in zip(everything(matrix_scan), everything(matrix_loop), strict=True):
        torch.testing.assert_close(ours, truth, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("how", ["weights", "autocast"])
@EACH
def test_bfloat16_is_close_to_float32(make, how):
    """Forward, a step from the final states, and gradients, in bfloat16 and under autocast."""
    mixer, x = build(make).float(), torch.randn(2, 40, D)
    truth, _ = mixer(x)
    if how == "weights":
        mixer, x = mixer.bfloat16(), x.bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=how == "autocast"):
        y, state = mixer(x[:, :-1])
        y_t, _ = mixer.step(x[:, -1], state)
    y = torch.cat([y, y_t.unsqueeze(1)], 1).float()
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in mixer.parameters())
    assert (y - truth).norm() < 0.1 * truth.norm()


def test_strong_decay_stays_finite():
    shape = (1, 64, 1)
    q, k, v = (torch.randn(*shape, 3).requires_grad_() for _ in range(3))
    decay = torch.full(shape, -50.0).requires_grad_()
    o, S = matrix_scan(q, k, v, torch.ones(shape), decay, None, None)
    (o.sum() + S.sum()).backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v, decay))


def test_a_reflection_has_eigenvalue_minus_one():
    """At β = 2 the transition I − β k kᵀ of the delta rule has the eigenvalue −1 on k."""
    k = F.normalize(torch.randn(1, 1, 1, 3, dtype=torch.float64), dim=-1)
    S = k.reshape(1, 1, 1, 3)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    _, after = matrix_scan(
        k,
        k,
        zero,
        torch.full((1, 1, 1), 2.0, dtype=torch.float64),
        torch.zeros(1, 1, 1, dtype=torch.float64),
        S,
        None,
    )
    torch.testing.assert_close(after, -S)


def test_lru_equals_its_complex_recurrence():
    mixer, x = build(lambda: LRU(D, 4)), torch.randn(2, 9, D, dtype=torch.float64)
    eigenvalues = torch.exp(-torch.exp(mixer.log_rate) + 1j * mixer.phase)
    b = torch.view_as_complex(mixer.W_in(x).unflatten(2, (4, 2))) * torch.exp(mixer.log_scale)
    h, outputs = torch.zeros(2, 4, dtype=torch.complex128), []
    for t in range(9):
        h = eigenvalues * h + b[:, t]
        outputs.append(mixer.W_out(torch.view_as_real(h).flatten(1)) + mixer.skip * x[:, t])
    torch.testing.assert_close(mixer(x)[0], torch.stack(outputs, 1))


def test_mamba_equals_its_recurrence():
    mixer, x = build(lambda: Mamba(D, d_state=3, conv=0)), torch.randn(2, 7, D, dtype=torch.float64)
    u, z = mixer.W_in(x).split(mixer.inner, -1)
    delta, B, C = mixer.W_x(u).split([mixer.rank, 3, 3], -1)
    delta, h, outputs = (
        F.softplus(mixer.W_delta(delta)),
        torch.zeros(2, mixer.inner, 3, dtype=torch.float64),
        [],
    )
    for t in range(7):
        h = (
            torch.exp(-delta[:, t, :, None] * mixer.log_A.exp()) * h
            + (delta * u)[:, t, :, None] * B[:, t, None]
        )
        outputs.append(((h * C[:, t, None]).sum(-1) + mixer.D * u[:, t]) * F.silu(z[:, t]))
    torch.testing.assert_close(mixer(x)[0], mixer.W_out(torch.stack(outputs, 1)))


def test_every_baseline_is_registered():
    names = {
        "attention",
        "lstm",
        "conv",
        "lru",
        "mamba",
        "mamba2",
        "deltanet",
        "gated_deltanet",
        "deltaproduct",
    }
    assert names <= set(layers.MIXERS)
    assert isinstance(
        layers.build_mixer("deltaproduct", D, {"products": 2, "heads": 1, "head_dim": 3}),
        layers.Mixer,
    )


def test_lstm_equals_its_equations():
    mixer, x = build(lambda: LSTM(D, 5)), torch.randn(2, 7, D, dtype=torch.float64)
    cell, h, c, outputs = (
        mixer.cell,
        torch.zeros(2, 5, dtype=torch.float64),
        torch.zeros(2, 5, dtype=torch.float64),
        [],
    )
    for t in range(7):
        z = (
            x[:, t] @ cell.weight_ih_l0.T
            + cell.bias_ih_l0
            + h @ cell.weight_hh_l0.T
            + cell.bias_hh_l0
        )
        i, f, g, o = z.chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        outputs.append(mixer.W_o(h))
    torch.testing.assert_close(mixer(x)[0], torch.stack(outputs, 1))


def test_the_wrappers_equal_their_equations():
    conv, x = build(lambda: Convolution(D, 4)), torch.randn(2, 7, D, dtype=torch.float64)
    padded = F.pad(x, (0, 0, 3, 0))
    kernel = conv.conv.weight[:, 0]
    u = F.silu(sum(padded[:, k : k + 7] * kernel[:, k] for k in range(4)) + conv.conv.bias)
    torch.testing.assert_close(conv(x)[0], u)
    mixer = build(MIXERS["gate, conv, bdlru"])
    inside = mixer.inner
    expected = torch.sigmoid(mixer.W_z(x)) * inside.inner(inside.conv(x)[0])[0]
    torch.testing.assert_close(mixer(x)[0], expected)


def test_packing_with_a_mask_equals_masking_each_sequence():
    mixer, lengths = build(MIXERS["gate, conv, bdlru"]), [5, 0, 1, 9]
    x, mask = torch.randn(1, 15, D, dtype=torch.float64), torch.rand(1, 15) > 0.3
    y, final = mixer(x, cu_seqlens=bounds(lengths), mask=mask)
    for row, (part, real) in enumerate(
        zip(x.split(lengths, 1), mask.split(lengths, 1), strict=True)
    ):
        own, state = mixer(part[:, real[0]])
        first = sum(lengths[:row])
        torch.testing.assert_close(y[:, first : first + lengths[row]][:, real[0]], own)
        assert_same_state(pick(final, slice(row, row + 1)), state)


@pytest.mark.usefixtures("unchecked")
def test_a_wrapper_needs_a_mixer():
    with pytest.raises(ValueError, match="as an object with the field `mixer`.*, got {'n': 3}"):
        OutputGate(D, {"n": 3})
    with pytest.raises(ValueError, match="Unknown mixer 'gru'"):
        ShortConvolution(D, "gru")
    with pytest.raises(ValueError, match="Unknown option of mixer 'lru': 'm'"):
        ShortConvolution(D, {"mixer": "lru", "m": 3})


def test_conv_equals_its_sum():
    mixer, x = build(lambda: Conv(D, 3)), torch.randn(2, 7, D, dtype=torch.float64)
    padded = F.pad(x, (0, 0, 2, 0))
    expected = (
        sum(padded[:, k : k + 7] @ mixer.conv.weight[:, :, k].T for k in range(3)) + mixer.conv.bias
    )
    torch.testing.assert_close(mixer(x)[0], expected)


def test_mamba2_equals_its_recurrence():
    mixer, x = (
        build(lambda: Mamba2(D, d_state=3, head_dim=4, conv=0)),
        torch.randn(2, 40, D, dtype=torch.float64),
    )
    mixed, delta, z = mixer.W_in(x).split([mixer.inner + 6, mixer.heads, mixer.inner], -1)
    u, B, C = mixed.split([mixer.inner, 3, 3], -1)
    u, delta = u.unflatten(2, (mixer.heads, 4)), F.softplus(delta + mixer.delta_bias)
    S, outputs = torch.zeros(2, mixer.heads, 4, 3, dtype=torch.float64), []
    for t in range(40):
        decay = torch.exp(-delta[:, t] * mixer.log_a.exp())[..., None, None]
        S = decay * S + (delta[:, t, :, None] * u[:, t])[..., None] * B[:, t, None, None]
        outputs.append(((S * C[:, t, None, None]).sum(-1) + mixer.D[:, None] * u[:, t]).flatten(1))
    expected = mixer.W_out(mixer.norm(torch.stack(outputs, 1) * F.silu(z)))
    torch.testing.assert_close(mixer(x)[0], expected)


@pytest.mark.parametrize("products", [1, 3])
def test_deltaproduct_equals_its_recurrence(products):
    mixer, x = (
        build(lambda: DeltaProduct(D, 2, 3, products=products, conv=0)),
        torch.randn(2, 40, D, dtype=torch.float64),
    )
    qkv = mixer.W_qkv(x).unflatten(2, (1 + 2 * products, 2, 3))
    q, k, v = (
        F.normalize(qkv[:, :, 0], dim=-1),
        F.normalize(qkv[:, :, 1 : 1 + products], dim=-1),
        qkv[:, :, 1 + products :],
    )
    beta, alpha = (
        2 * torch.sigmoid(mixer.W_beta(x)).unflatten(2, (products, 2)),
        torch.sigmoid(mixer.W_alpha(x)),
    )
    S, outputs = torch.zeros(2, 2, 3, 3, dtype=torch.float64), []
    for t in range(40):
        S = alpha[:, t, :, None, None] * S
        for i in range(products):
            k_i, v_i, beta_i = (
                k[:, t, i, :, :, None],
                v[:, t, i, :, :, None],
                beta[:, t, i, :, None, None],
            )
            S = (
                S @ (torch.eye(3, dtype=torch.float64) - beta_i * k_i @ k_i.mT)
                + beta_i * v_i @ k_i.mT
            )
        outputs.append((S @ q[:, t, :, :, None]).squeeze(-1))
    o = mixer.norm(torch.stack(outputs, 1)).flatten(2)
    torch.testing.assert_close(mixer(x)[0], mixer.W_out(o * F.silu(mixer.W_z(x))))


@EACH
def test_empty_batches(make):
    mixer = build(make)
    packed, padded = (
        torch.randn(1, 0, D, dtype=torch.float64),
        torch.randn(0, 3, D, dtype=torch.float64),
    )
    for x, options in (
        (packed, {"cu_seqlens": torch.tensor([0])}),
        (padded, {"mask": torch.ones(0, 3, dtype=torch.bool)}),
    ):
        y, state = mixer(x, **options)
        assert y.shape == x.shape
        assert all(len(each) == 0 for each in flat(state))


@pytest.mark.parametrize("name", ["mamba2 bare", "gated deltanet"])
def test_a_state_of_another_batch_size_raises(name):
    mixer = build(MIXERS[name])
    _, state = mixer(torch.randn(1, 3, D, dtype=torch.float64))
    with pytest.raises(
        ValueError, match=r"The state must have the shape \(.*\) for a batch of 2, got"
    ):
        mixer(torch.randn(2, 3, D, dtype=torch.float64), state)


def fla_reference(layer, x):
    """The delta rule of flash-linear-attention, step by step, from the equations of its layers."""
    H, D, n = layer.heads, layer.head_dim, layer.products
    B, T, _ = x.shape
    raw = x @ layer.W_qkv.weight.T
    if layer.conv is not None:
        padded = torch.cat([raw.new_zeros(B, layer.conv.size - 1, raw.shape[2]), raw], 1)
        kernel = layer.conv.weight[:, 0]
        raw = sum(padded[:, i : i + T] * kernel[:, i] for i in range(layer.conv.size))
    mixed = (raw * torch.sigmoid(raw)).view(B, T, 1 + 2 * n, H, D)
    beta = 2 / (1 + torch.exp(-(x @ layer.W_beta.weight.T))).view(B, T, n, H)
    S = x.new_zeros(B, H, D, D)  # rows: values, columns: keys
    outputs = []
    for t in range(T):
        q = mixed[:, t, 0]
        q = q / (q.square().sum(-1, keepdim=True) + 1e-6).sqrt() / D**0.5
        if layer.W_alpha is not None:
            step = torch.log1p(torch.exp(x[:, t] @ layer.W_alpha.weight.T + layer.W_alpha.bias))
            S = torch.exp(-layer.log_a.exp() * step)[..., None, None] * S
        for i in range(n):
            k = mixed[:, t, 1 + i]
            k = k / (k.square().sum(-1, keepdim=True) + 1e-6).sqrt()
            v = mixed[:, t, 1 + n + i]
            error = v - torch.einsum("bhvk,bhk->bhv", S, k)
            S = S + torch.einsum("bh,bhv,bhk->bhvk", beta[:, t, i], error, k)
        outputs.append(torch.einsum("bhvk,bhk->bhv", S, q))
    o = torch.stack(outputs, 1)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * layer.norm.weight
    z = (x @ layer.W_z.weight.T).view(B, T, H, D)
    return (o * z * torch.sigmoid(z)).flatten(2) @ layer.W_out.weight.T


@pytest.mark.parametrize("conv", [0, 4])
@pytest.mark.parametrize("cls", [DeltaNet, GatedDeltaNet, DeltaProduct])
def test_the_delta_rules_have_the_form_of_fla(cls, conv):
    layer = cls(6, 2, 4, conv=conv, form="fla").double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(2, 40, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], fla_reference(layer, x), rtol=1e-12, atol=1e-12)


def test_the_decay_of_fla_starts_near_one():
    """The median over heads of α; the plain form starts at one half."""
    torch.manual_seed(0)
    layer = GatedDeltaNet(4, 4096, 1, conv=0, form="fla")
    alpha = layer._log_decay(layer.W_alpha.bias).exp()
    assert alpha.median().item() == pytest.approx(0.94, abs=0.02)
    with pytest.raises(ValueError, match="Unknown form 'fast'. Available: plain, fla"):
        GatedDeltaNet(4, form="fast")
