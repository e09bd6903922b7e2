"""Mamba-3, RWKV-7, PD-SSM and SLiCE, each against an oracle that does not share their code.

Oracles are loops over time from the published equations, in other terms than the layer's where
there are any: complex numbers in a rotating frame for Mamba-3, dense complex matrices for PD-SSM.
"""

import math

import pytest
import torch
from torch import Tensor

from statemix import layers
from statemix.layers.baselines import PDSSM, RWKV7, Mamba3, SLiCE
from statemix.layers.baselines.rwkv7 import CHUNK, diagonal_plus_rank_one_scan
from statemix.ops import Lookup, block_scan

D = 6


def build(make, std: float = 0.5):
    mixer = make().double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return mixer


def assert_equal_with_gradients(mixer, oracle, T: int = 40) -> None:
    """Outputs, and gradients of the input and of every parameter, to 1e-12."""
    x = torch.randn(2, T, mixer.d_model, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(2, T, mixer.d_model, dtype=torch.float64)
    found = [
        (y, *torch.autograd.grad((y * probe).sum(), [x, *mixer.parameters()]))
        for y in (mixer(x)[0], oracle(mixer, x))
    ]
    for ours, truth in zip(*found, strict=True):
        assert (ours - truth).abs().max() <= 1e-12 * max(1.0, truth.abs().max())


# SLiCE


def slice_loop(mixer: SLiCE, x: Tensor) -> Tensor:
    m = mixer.block_size
    y, before, outputs = mixer.y0.expand(len(x), -1), torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        X = x[:, t] - before if mixer.path == "values" else x[:, t]
        rows = mixer.scale * (X @ mixer.A.weight.T + mixer.A.bias)
        A = torch.zeros(len(x), D, D, dtype=x.dtype)
        for i in range(D):
            first = i // m * m
            A[:, i, first : first + m] = rows[:, i * m : (i + 1) * m]
        y = y + (A @ y[..., None])[..., 0] + mixer.scale * (X @ mixer.B.weight.T + mixer.B.bias)
        before = x[:, t]
        outputs.append(y)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("options", [{}, {"path": "increments", "scale": 0.5}], ids=str)
@pytest.mark.parametrize("m", [1, 3])
def test_slice_equals_its_recurrence(m, options):
    assert_equal_with_gradients(build(lambda: SLiCE(D, m, **options), 0.2), slice_loop)


@pytest.mark.parametrize("path", ["values", "increments"])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_slice_equals_its_package(m, path):
    """The layer of torch-slices 0.3.2, forward and all gradients."""
    package = pytest.importorskip("slices", reason="torch-slices needs Python 3.11")
    theirs = package.SLiCE(8, block_size=m, init_std=0.2, path_mode=path, use_parallel=False)
    theirs = theirs.double()
    ours = SLiCE(8, m, path=path).double()
    pairs = ((ours.A, theirs.vf_A.weight), (ours.B, theirs.vf_B.weight))
    with torch.no_grad():
        ours.y0.copy_(theirs.init)
        for linear, weight in pairs:
            linear.weight.copy_(weight[:, 1:])
            linear.bias.copy_(weight[:, 0])
    x = torch.randn(3, 50, 8, dtype=torch.float64, requires_grad=True)
    y, truth = ours(x)[0], theirs(x)
    assert (y - truth).abs().max() <= 1e-12 * truth.abs().max()
    d_x, d_y0, *d_ours = torch.autograd.grad(
        y.square().sum(), [x, ours.y0, *(p for each, _ in pairs for p in (each.bias, each.weight))]
    )
    t_x, t_y0, *d_theirs = torch.autograd.grad(
        truth.square().sum(), [x, theirs.init, *(weight for _, weight in pairs)]
    )
    d_joint = [
        torch.cat([b[:, None], W], 1) for b, W in zip(d_ours[::2], d_ours[1::2], strict=True)
    ]
    for a, b in zip([d_x, d_y0, *d_joint], [t_x, t_y0, *d_theirs], strict=True):
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()


def test_slice_starts_as_its_package():
    package = pytest.importorskip("slices", reason="torch-slices needs Python 3.11")
    theirs = package.SLiCE(256, block_size=4)
    ours = SLiCE(256)
    assert ours.path == theirs.path_mode
    assert ours.A.weight.std().item() == pytest.approx(theirs.vf_A.weight.std().item(), rel=0.02)
    assert ours.B.weight.std().item() == pytest.approx(theirs.vf_B.weight.std().item(), rel=0.02)


# Mamba-3


def mamba3_projections(mixer: Mamba3, x: Tensor):
    """z, v, normalised keys and queries with bias, Δ, α, λ and the angle of each step."""
    H, P, N = mixer.heads, mixer.head_dim, mixer.d_state
    B, T, _ = x.shape
    z, v, b, c, dt, a, trap, angle = (x @ mixer.W_in.weight.T).split(mixer.sizes, -1)
    rms = [y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() for y in (b, c)]
    k = (rms[0] * mixer.k_norm.weight)[:, :, None] + mixer.k_bias
    q = (rms[1] * mixer.q_norm.weight)[:, :, None] + mixer.q_bias
    delta = torch.log1p(torch.exp(dt + mixer.delta_bias))
    decay = torch.where(a >= 0, 1 + a, 1 / (1 - a)).clamp(min=1e-4)
    turn = math.pi * torch.tanh(angle)[:, :, None] * delta[..., None]
    v = v.reshape(B, T, H, P)
    assert k.shape == (B, T, H, N)
    return z, v, k, q, delta, torch.exp(-decay * delta), torch.sigmoid(trap), turn


def as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


def mamba3_loop(mixer: Mamba3, x: Tensor) -> Tensor:
    """Keys and queries do not rotate; the state does, by complex factors."""
    z, v, k, q, delta, alpha, trap, turn = mamba3_projections(mixer, x)
    k, q = as_complex(k), as_complex(q)
    idle = torch.zeros(*turn.shape[:-1], k.shape[-1] - turn.shape[-1], dtype=x.dtype)
    back = torch.polar(torch.ones(()).double(), -torch.cat([turn, idle], -1))
    S = torch.zeros(*v.shape[:1], *v.shape[2:], k.shape[-1], dtype=torch.complex128)
    outputs, past = [], torch.zeros_like(S)
    for t in range(x.shape[1]):
        new = v[:, t, :, :, None] * k[:, t, :, None]
        S = S + ((1 - trap) * delta)[:, t, :, None, None] * past
        S = alpha[:, t, :, None, None] * back[:, t, :, None] * S
        S = S + (trap * delta)[:, t, :, None, None] * new
        past = new
        y = (S * q[:, t, :, None].conj()).sum(-1).real + mixer.D[:, None] * v[:, t]
        gate = z[:, t] / (1 + torch.exp(-z[:, t]))
        outputs.append((y.flatten(1) * gate) @ mixer.W_out.weight.T)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("options", [{"d_state": 6}, {"d_state": 8, "rope_fraction": 1.0}], ids=str)
def test_mamba3_equals_its_recurrence(options):
    assert_equal_with_gradients(build(lambda: Mamba3(D, head_dim=4, **options)), mamba3_loop, 70)


def test_mamba3_is_a_block_recurrence():
    """In the rotating frame each pair of channels is a block of two."""
    mixer = build(lambda: Mamba3(D, d_state=2, head_dim=4, rope_fraction=1.0))
    x = torch.randn(2, 30, D, dtype=torch.float64)
    z, v, k, q, delta, alpha, trap, turn = mamba3_projections(mixer, x)
    angle = turn[..., 0]
    rows = [torch.cos(angle), torch.sin(angle), -torch.sin(angle), torch.cos(angle)]
    A = alpha[..., None, None] * torch.stack(rows, -1).unflatten(-1, (2, 2))
    new = v[..., None] * k[..., None, :]
    old = torch.cat([torch.zeros_like(new[:, :1]), new[:, :-1]], 1)
    A = A.unsqueeze(3).expand(-1, -1, -1, 4, -1, -1)
    b = (trap * delta)[..., None, None] * new
    b = b + ((1 - trap) * delta)[..., None, None] * (A @ old[..., None])[..., 0]
    h, _ = block_scan(A.flatten(2, 3), b.flatten(2, 3))
    y = (h.view(b.shape) * q[..., None, :]).sum(-1) + mixer.D[:, None] * v
    expected = mixer.W_out(y.flatten(2) * z * torch.sigmoid(z))
    torch.testing.assert_close(mixer(x)[0], expected, rtol=1e-12, atol=1e-12)


def test_angles_of_mamba3_stay_small_in_float32():
    """After 20,000 steps, states in float32 are as close to those in float64 as after 200."""
    mixer = build(lambda: Mamba3(D, d_state=4, head_dim=4))
    x = torch.randn(1, 20_000, D)
    _, (_, truth, _, _) = mixer(x.double())
    _, (_, theta, _, _) = mixer.float()(x)
    away = (theta.double() - truth + math.pi).remainder(2 * math.pi) - math.pi
    assert theta.max() < 2 * math.pi
    assert away.abs().max() < 1e-3


# RWKV-7


def rwkv7_loop(mixer: RWKV7, x: Tensor) -> Tensor:
    H, N = mixer.heads, mixer.head_dim
    S = torch.zeros(len(x), H, N, N, dtype=x.dtype)
    before, outputs = torch.zeros_like(x[:, 0]), []
    for t in range(x.shape[1]):
        now = x[:, t]
        x_r, x_w, x_k, x_v, x_a, x_g = (now + (before - now) * mu for mu in mixer.mu)
        before = now
        r, k, v = x_r @ mixer.W_r.weight.T, x_k @ mixer.W_k.weight.T, x_v @ mixer.W_v.weight.T
        raw = mixer.w0 + torch.tanh(x_w @ mixer.w_low.A) @ mixer.w_low.B
        w = torch.exp(-1 / (math.sqrt(math.e) * (1 + torch.exp(-raw))))
        a = 1 / (1 + torch.exp(-(mixer.a0 + x_a @ mixer.a_low.A @ mixer.a_low.B)))
        g = 1 / (1 + torch.exp(-(x_g @ mixer.g_low.A))) @ mixer.g_low.B
        kappa = k * mixer.k_k
        k = k + k * (a - 1) * mixer.k_a
        r, k, v, w, a, kappa = (y.reshape(-1, H, N, 1) for y in (r, k, v, w, a, kappa))
        kappa = kappa / kappa.square().sum(2, keepdim=True).sqrt()
        S = S * w.mT - S @ kappa @ (kappa * a).mT + v @ k.mT
        o = (S @ r)[..., 0]
        o = o - o.mean(-1, keepdim=True)
        o = (o / (o.square().mean(-1, keepdim=True) + 64e-5).sqrt()).flatten(1)
        o = o * mixer.norm.weight + mixer.norm.bias
        bonus = (r[..., 0] * k[..., 0] * mixer.r_k).sum(-1, keepdim=True) * v[..., 0]
        outputs.append((o + bonus.flatten(1)) * g @ mixer.W_o.weight.T)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("head_dim", [3, 6])
def test_rwkv7_equals_its_recurrence(head_dim):
    assert_equal_with_gradients(build(lambda: RWKV7(D, head_dim)), rwkv7_loop, 50)


@pytest.mark.parametrize("T", [1, CHUNK - 1, CHUNK, CHUNK + 1, 100])
def test_chunks_of_rwkv7_equal_the_recurrence(T):
    r, k, v, a, b = (torch.randn(2, T, 3, 4, dtype=torch.float64) / 2 for _ in range(5))
    log_w = -0.6 * torch.rand(2, T, 3, 4, dtype=torch.float64)
    start, real = torch.randn(2, 3, 4, 4, dtype=torch.float64), torch.rand(2, T) > 0.3
    a, b = a / 4, b / 4
    o, S = diagonal_plus_rank_one_scan(r, k, v, a, b, log_w, start, real)
    expected = start
    for t in range(T):
        G = torch.diag_embed(log_w[:, t].exp()) + a[:, t, :, :, None] * b[:, t, :, None]
        moved = expected @ G + v[:, t, :, :, None] * k[:, t, :, None]
        expected = torch.where(real[:, t, None, None, None], moved, expected)
        truth = (expected @ r[:, t, :, :, None])[..., 0]
        torch.testing.assert_close(o[:, t], truth, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(S, expected, rtol=1e-12, atol=1e-12)


def test_rwkv7_starts_as_the_first_layer_of_its_models():
    mixer = RWKV7(128)
    i, p = torch.arange(128) / 128, torch.arange(128) / 127
    torch.testing.assert_close(mixer.mu[0], 1 - i**0.2)
    torch.testing.assert_close(mixer.w0[[0, 64]], -5.5 + 6 * p[[0, 64]] ** 2 - 2.5)
    assert mixer.w_low.A.shape == (128, 32)
    assert mixer.g_low.A.shape == (128, 64)
    assert (mixer(torch.randn(1, 5, 128))[0] == 0).all()
    S = mixer(torch.randn(1, 5, 128))[1][0]
    assert S.shape == (1, 2, 64, 64)


# PD-SSM


def pdssm_loop(mixer: PDSSM, x: Tensor) -> Tensor:
    """Dense complex transition matrices, straight-through one-hot rows."""
    N = mixer.states
    gelu = lambda y: 0.5 * y * (1 + torch.erf(y / math.sqrt(2)))  # noqa: E731
    h = torch.zeros(len(x), N, dtype=torch.complex128)
    h[:, 0] = 1
    outputs = []
    for t in range(x.shape[1]):
        u = x[:, t]
        raw = torch.exp(u @ mixer.select.weight.T)
        M = torch.einsum("bk,kij->bij", raw / raw.sum(-1, keepdim=True), mixer.M)
        soft = torch.exp(M) / torch.exp(M).sum(-1, keepdim=True)
        hard = (M.max(-1, keepdim=True).values == M).double()
        P = hard.detach() - soft.detach() + soft
        size, phase = (
            1 / (1 + torch.exp(-(gelu(u @ f[0].weight.T + f[0].bias) @ f[2].weight.T + f[2].bias)))
            for f in (mixer.magnitude, mixer.phase)
        )
        A = (size * torch.exp(2j * math.pi * phase))[..., None] * P
        b = torch.complex(u @ mixer.B[:, 0].T, u @ mixer.B[:, 1].T)
        h = (A @ h[..., None])[..., 0] + b
        read = torch.cat([h.real, h.imag], -1)
        outputs.append(read @ mixer.W.weight.T + mixer.W.bias + mixer.D * u)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("states", [None, 5])
def test_pdssm_equals_its_recurrence(states):
    assert_equal_with_gradients(build(lambda: PDSSM(D, states)), pdssm_loop)


@pytest.mark.parametrize("make", [lambda: Mamba3(D, d_state=4, head_dim=4), lambda: PDSSM(D)])
def test_tables_give_the_same_as_their_rows(make):
    mixer, tokens = build(make), torch.randint(0, 3, (2, 40))
    table = torch.randn(3, D, dtype=torch.float64, requires_grad=True)
    x = table[tokens]
    found = [
        [y, *torch.autograd.grad(y.square().sum(), [table, *mixer.parameters()])]
        for y in (mixer(Lookup(table, tokens))[0], mixer(x)[0])
    ]
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("slice", {"block_size": 4}, "`block_size` must divide the width d_model = 6, got 4"),
        ("slice", {"path": "value"}, "Unknown path 'value'. Available: values, increments"),
        ("slice", {"init_std": -1.0}, "`init_std` must be finite and not negative, got -1.0"),
        ("rwkv7", {"head_dim": 4}, "`head_dim` must divide the width d_model = 6, got 4"),
        ("mamba3", {"head_dim": 5}, "`head_dim` must divide the inner width 12"),
        ("mamba3", {"head_dim": 4, "rope_fraction": 1.5}, "`rope_fraction` must be at most 1"),
        ("mamba3", {"head_dim": 4, "d_state": 3}, "at least two of the d_state = 3 channels"),
        ("pdssm", {"dictionary": 0}, "`dictionary` must be"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_wrong_options_raise(name, options, message):
    with pytest.raises(ValueError, match=message):
        layers.build_mixer(name, D, options)
