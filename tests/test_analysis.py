"""Mathematical facts about states that mix, checked numerically."""

import itertools
import math

import numpy as np
import pytest
import torch

from statemix import BDLRU, HLRU
from statemix.analysis import cascade, counting
from statemix.analysis.duality import attend, layer_attention
from statemix.analysis.flops import step_cost
from statemix.analysis.representations import (
    as_matrix,
    faithful_representation,
    inverse,
    multiplies_like,
    multiply,
)
from statemix.analysis.spectrum import (
    Spectrum,
    eigenvalues,
    eigenvalues_of_two,
    radius_bound,
    transitions,
)
from statemix.models import ModelConfig
from statemix.ops import gated_block_scan
from statemix.tasks import find_task
from statemix.tasks.groups import elements

LOUD = 60.0  # a raw gate so large that the others vanish


def layer_with_large_gates(make, d=6, scale=3.0, gate="softmax"):
    torch.manual_seed(0)
    layer = make(d, gate).double()
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(std=scale / math.sqrt(d))
    return layer


LAYERS = {
    **{f"bdlru m{m}": (lambda d, gate, m=m: BDLRU(d, 3, m, gate=gate)) for m in (1, 2, 3, 5)},
    **{f"hlru m{m}": (lambda d, gate, m=m: HLRU(d, 3, m, gate=gate)) for m in (1, 2, 3, 5)},
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("gate", ["softmax", "tanh"])
def test_duality(name, gate):
    layer = layer_with_large_gates(LAYERS[name], gate=gate)
    x = torch.randn(2, 9, 6, dtype=torch.float64)
    n, m = layer.state_shape
    values = layer.W_v(x).unflatten(2, (n, -1))
    attention = layer_attention(layer, x)
    v = values if isinstance(layer, BDLRU) else torch.nn.functional.pad(values, (0, m - 1))
    y, state = layer(x)
    h = attend(attention, v)
    assert torch.allclose(layer.W_o(h.flatten(2)), y, rtol=0, atol=1e-13)
    assert torch.allclose(h[:, -1], state, rtol=0, atol=1e-13)
    assert not attention[:, :, 2, 3:].any()


@pytest.mark.parametrize("m", [2, 3, 5])
def test_attention_of_a_block_mixes_but_that_of_a_channel_does_not(m):
    x = torch.randn(1, 6, 6, dtype=torch.float64)
    block = layer_attention(layer_with_large_gates(LAYERS[f"bdlru m{m}"]), x)
    assert (block[0, 0, 3, 1].abs() > 1e-12).all()  # states see all inputs of their block
    single = layer_attention(layer_with_large_gates(LAYERS["bdlru m1"]), x)
    assert single.shape[-2:] == (1, 1)
    channel = layer_attention(layer_with_large_gates(LAYERS[f"hlru m{m}"]), x)
    assert not channel[..., 1:].any()  # the input enters only the first row


def test_closed_form_for_blocks_of_two():
    rng = np.random.default_rng(0)
    matrices = rng.normal(size=(500, 2, 2))
    ours = eigenvalues_of_two(torch.from_numpy(matrices)).numpy()
    for matrix, pair in zip(matrices, ours, strict=True):
        theirs = np.linalg.eigvals(matrix)
        assert (
            min(np.abs(pair - np.array(order)).max() for order in itertools.permutations(theirs))
            < 1e-12
        )


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_spectra_agree_with_numpy(m):
    layer = layer_with_large_gates(LAYERS[f"hlru m{m}"])
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    found = eigenvalues(transitions(layer, x)).numpy()
    gates = (
        torch.softmax(layer.W_g(x).unflatten(2, layer.gate_shape), -1).detach().numpy()[..., :-1]
    )
    for index in np.ndindex(gates.shape[:-1]):
        roots = np.roots([1.0, *(-gates[index])])  # λ^m = a_1 λ^(m-1) + .. + a_m
        roots = np.concatenate([roots, np.zeros(m - len(roots))])
        assert np.abs(np.sort_complex(roots) - np.sort_complex(found[index])).max() < 1e-7


@pytest.mark.parametrize("name", LAYERS)
def test_spectral_radii_stay_within_the_bound(name):
    layer = layer_with_large_gates(LAYERS[name])
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    spectrum, bound = Spectrum(eigenvalues(transitions(layer, x))), radius_bound(layer, x)
    assert (spectrum.radii.amax(-1) <= bound + 1e-12).all()
    if isinstance(layer, BDLRU):
        n, m = layer.state_shape
        a0 = torch.softmax(layer.W_g(x).unflatten(2, (n, m, m + 1)), -1)[..., -1]
        assert torch.allclose(bound, 1 - a0.amin(-1), rtol=0, atol=1e-12)


def test_the_bound_of_hlru_is_the_mth_root_and_is_attained():
    """1 − a_0 does not bound the eigenvalues of an H-LRU; its m-th root does."""
    layer = HLRU(4, 1, 2).double()
    x = torch.zeros(1, 1, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.W_g.bias.copy_(
            torch.tensor([0.0, 0.81, 0.19], dtype=torch.float64).clamp_min(1e-300).log()
        )
    radius = Spectrum(eigenvalues(transitions(layer, x))).radii.amax().item()
    assert radius == pytest.approx(0.9, abs=1e-12)
    assert radius_bound(layer, x).item() == pytest.approx(radius, abs=1e-12)


def gates_of(matrix, m):
    """Raw gates whose softmax is a permutation matrix, with a closed input gate."""
    return torch.nn.functional.pad(LOUD * torch.as_tensor(matrix, dtype=torch.float32), (0, 1))


def test_transitions_that_each_block_size_can_represent():
    """One state can neither flip nor rotate; two can flip (λ = −1); three can rotate by 120°."""

    def random(m):
        return eigenvalues(
            torch.softmax(4 * torch.randn(2000, m, m + 1, dtype=torch.float64), -1)[..., :-1]
        )

    torch.manual_seed(0)
    one, two, three = (Spectrum(random(m)) for m in (1, 2, 3))
    assert one.negative == 0.0
    assert one.complex == 0.0
    assert two.negative > 0.1
    assert two.complex == 0.0
    assert three.complex > 0.1
    flip = eigenvalues(torch.softmax(gates_of(np.eye(2)[::-1].copy(), 2), -1)[..., :-1])
    assert flip.real.min().item() == pytest.approx(-1.0, abs=1e-12)
    turn = Spectrum(eigenvalues(torch.softmax(gates_of(np.roll(np.eye(3), 1, 0), 3), -1)[..., :-1]))
    assert turn.angles.max().item() == pytest.approx(2 * math.pi / 3, abs=1e-12)
    assert turn.radii.min().item() == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("n", [3, 4, 5])
def test_a_block_of_n_solves_s_n_by_construction(n):
    """The state h holds p(0) .. p(n-1) of the running product p, and A[i, x(i)] = 1 yields p·x.

    The first step writes the identity.
    """
    task = find_task(f"s{n}")
    elements = list(itertools.permutations(range(n)))
    examples = task.examples(4, 2000, np.random.default_rng(0))
    table = torch.zeros(len(elements), n, n + 1)
    for index, p in enumerate(elements):
        table[index, range(n), list(p)] = LOUD
    gates = torch.cat(
        [torch.zeros(4, 1, n, n + 1), table[torch.from_numpy(examples.inputs)]], 1
    ).unsqueeze(2)
    gates[:, 0, :, :, -1] = LOUD
    v = torch.zeros(4, 2001, 1, n)
    v[:, 0, 0] = torch.arange(n, dtype=torch.float32)
    h, _ = gated_block_scan(gates, v)
    index_of = {p: index for index, p in enumerate(elements)}
    found = [
        [index_of[tuple(int(x) for x in state)] for state in row] for row in h[:, 1:, 0].tolist()
    ]
    assert (np.array(found) == examples.targets).all()


SMALLEST = [(2, 2, 1), (3, 3, 1), (4, 4, 1), (5, 5, 1), (2, 1, 2), (3, 3, 2), (4, 3, 2), (5, 5, 2)]


@pytest.mark.parametrize(("n", "m", "turns"), SMALLEST)
def test_the_smallest_blocks_that_represent_a_group(n, m, turns):
    found = faithful_representation(n, m, turns=turns)
    assert found is not None
    assert m == 1 or faithful_representation(n, m - 1, turns=turns) is None
    a, b = list(found)[-1], list(found)[1]
    assert np.array_equal(
        as_matrix(found[multiply(a, b)], m), as_matrix(found[a], m) @ as_matrix(found[b], m)
    )
    for element in found.values():
        assert (np.abs(as_matrix(element, m)).sum(1) == 1).all()


@pytest.mark.parametrize(("n", "m", "turns"), [(3, 3, 1), (4, 3, 2), (4, 4, 1)])
def test_multiplies_like_the_group(n, m, turns):
    """Transitions of a representation multiply like the group, even if they contract."""
    elements = list(itertools.permutations(range(n)))
    products = np.array(
        [[elements.index(tuple(x[i] for i in y)) for y in elements] for x in elements]
    )
    found = faithful_representation(n, m, turns=turns)
    assert found is not None
    matrices = np.stack(
        [as_matrix(found[x], m).T for x in elements]
    )  # transposed matrices multiply in reverse: A_y A_x for x · y
    assert multiplies_like(0.6 * matrices + 0.01, products) == 1.0
    spoilt = matrices.copy()
    spoilt[1] = spoilt[0]
    assert 0.3 < multiplies_like(spoilt, products) < 1.0
    assert multiplies_like(np.random.default_rng(0).normal(size=matrices.shape), products) < 0.2


def test_flops_per_step():
    cost = lambda mixer, **options: step_cost(ModelConfig(mixer, options, width=64))  # noqa: E731
    assert cost("bdlru", n_blocks=10, block_size=4).formula == 2 * 10 * 16 + 2 * 10
    assert cost("bdlru", n_blocks=10, block_size=4).counted == 2 * 10 * 16 + 2 * 10 * 4
    assert cost("hlru", n_channels=10, order=4) == type(cost("lstm", hidden=3))(100, 100)
    assert (
        cost("bdlru", n_blocks=10, block_size=1).formula
        == cost("hlru", n_channels=10, order=1).formula
    )
    assert cost("lstm", hidden=10).formula == 1050
    assert cost("mamba2", d_state=8).formula == 2 * 128 * 8
    assert (
        cost("gated_deltanet", heads=2, head_dim=32).formula * 4
        == cost("deltaproduct", heads=2, head_dim=32).formula
    )
    with pytest.raises(ValueError, match="no cost formula for the mixer 'conv'"):
        cost("conv")


@pytest.mark.parametrize("length", [1, 2, 2000])
def test_two_layers_of_blocks_of_three_track_s4(length):
    """The construction behind experiments/fig_depth.py is exact at every length."""
    examples = find_task("s4").draw(16, length, np.random.default_rng(0))
    np.testing.assert_array_equal(cascade.carry_s4(examples.inputs), examples.targets)


def test_gates_of_the_cascade_are_valid():
    """Rows select one of three states; the first layer's gates depend on the input alone."""
    inputs = np.arange(24)[:, None]
    for A in (cascade.product_gates(inputs), cascade.bit_gates(inputs, inputs[::-1].copy())):
        assert A.shape[-2:] == (3, 3)
        assert ((A == 0) | (A == 1)).all()
        assert (A.sum(-1) == 1).all()
        assert (A.sum(-2) == 1).all()


def test_s4_factorises():
    """g = v s is unique; double swaps form a normal subgroup whose indices add bitwise."""
    pairs = [cascade.factors(g) for g in cascade.ELEMENTS]
    assert [multiply(v, s) for v, s in pairs] == cascade.ELEMENTS
    assert len(set(pairs)) == 24
    assert {s[3] for _, s in pairs} == {3}
    for (i, v), (j, u) in itertools.product(enumerate(cascade.DOUBLE_SWAPS), repeat=2):
        assert cascade.DOUBLE_SWAPS.index(multiply(v, u)) == i ^ j
    for g, v in itertools.product(cascade.ELEMENTS, cascade.DOUBLE_SWAPS):
        assert multiply(multiply(g, v), inverse(g)) in cascade.DOUBLE_SWAPS
    assert [tuple(g) for g in elements("s", 4)] == cascade.ELEMENTS


@pytest.mark.parametrize("length", [1, 16, 200])
@pytest.mark.parametrize(("n", "m", "k"), [(2, 1, 2), (3, 2, 3), (4, 3, 2)])
def test_counting_tracks_groups_at_bounded_length(n, m, k, length):
    """With softmax gates, one state suffices for S2, two for S3 and three for S4."""
    assert faithful_representation(n, m) is None
    examples = find_task(f"s{n}").draw(8, length, np.random.default_rng(0))
    np.testing.assert_array_equal(
        counting.carry_by_counting(n, m, k, examples.inputs), examples.targets
    )


def test_counting_gates_are_valid():
    gates, v = counting.counting_gates(
        list(faithful_representation(3, 2, turns=3).values()), 2, eps=0.01
    )
    torch.testing.assert_close(gates.exp().sum(-1), torch.ones(6, 2, 2))
    assert (v[:, 0] == 0).all()
    assert set(v.unique().tolist()) == {0.0, 1.0, 2.0}


@pytest.mark.parametrize(("n", "m", "k"), [(3, 1, 3), (4, 2, 4), (5, 4, 2)])
def test_counting_errors(n, m, k):
    with pytest.raises(
        ValueError, match=f"S{n} does not embed into the wreath product of Z_{k} and S_{m}"
    ):
        counting.carry_by_counting(n, m, k, np.zeros((1, 1), dtype=np.int64))
