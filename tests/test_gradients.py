"""First and second derivatives in float64, including states, and properties of registered ops."""

import pytest
import torch
from cases import (
    CASES,
    EACH_SCAN,
    GATED_BLOCK,
    GATED_COMPANION,
    PLAIN,
    Case,
    bounds,
    random_mask,
    straight_through,
)
from torch.autograd import gradcheck, gradgradcheck

from statemix.ops import block_scan, companion_scan

SETTINGS = {
    "plain": {},
    "reverse": {"reverse": True},
    "masked": {"mask": random_mask(2, 4, 1)},
    "masked reverse": {"mask": random_mask(2, 4, 2), "reverse": True},
    "packed": {"cu_seqlens": bounds([1, 0, 3])},
    "packed masked reverse": {
        "cu_seqlens": bounds([1, 0, 3]),
        "mask": random_mask(1, 4, 3),
        "reverse": True,
    },
}
# All scans are tested in all settings, other gate functions in the first and the last.
WAYS = [
    (case, name)
    for case in CASES
    for name in (SETTINGS if case in EACH_SCAN else ("plain", "packed masked reverse"))
]
SMOOTH = [(case, name) for case, name in WAYS if not case.is_hardmax]
every_way = pytest.mark.parametrize(
    ("case", "settings"), [(c, SETTINGS[s]) for c, s in SMOOTH], ids=[f"{c} {s}" for c, s in SMOOTH]
)


def leaves(case: Case, settings: dict, n: int = 1, m: int = 3) -> list[torch.Tensor]:
    packed = "cu_seqlens" in settings
    return [
        x.requires_grad_()
        for x in case.inputs(1 if packed else 2, 4, n, m, S=3 if packed else None, seed=7)
    ]


@every_way
def test_gradcheck(case: Case, settings: dict):
    assert gradcheck(lambda *x: case.scan(*x, **settings), leaves(case, settings))


@every_way
def test_gradgradcheck(case: Case, settings: dict):
    assert gradgradcheck(lambda *x: case.scan(*x, **settings), leaves(case, settings, m=2))


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("case", [case for case in CASES if case.is_hardmax], ids=str)
def test_hardmax_is_a_straight_through_estimator(case: Case, settings: dict):
    """Values, gradients and second derivatives equal those of hard + (soft − soft.detach())."""
    scan = block_scan if case.block else companion_scan

    def expected(gates, v, *h0, **settings):
        w = straight_through(gates)
        return scan(w[..., :-1], w[..., -1] * v, *h0, **settings)

    def differentiate(run, inputs):
        h, final = run(*inputs, **settings)
        first = torch.autograd.grad(h.sin().sum() + final.cos().sum(), inputs, create_graph=True)
        return h, final, *first, *torch.autograd.grad(sum(g.sin().sum() for g in first), inputs)

    with_state = leaves(case, settings, n=3)
    for inputs in (with_state, with_state[:2]):
        h, final, *gradients = differentiate(case.scan, inputs)
        truth, true_final, *true_gradients = differentiate(expected, inputs)
        assert torch.equal(h, truth)
        assert torch.equal(final, true_final)
        torch.testing.assert_close(gradients, true_gradients, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("case", [case for case in CASES if not case.is_hardmax], ids=str)
def test_without_initial_state(case: Case):
    X, x, _ = leaves(case, {})
    assert gradcheck(lambda X, x: case.scan(X, x), (X, x))


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_third_derivative(case: Case):
    inputs = [y.requires_grad_() for y in case.inputs(1, 3, 1, 2, seed=3)]

    def second(*x):
        h, final = case.scan(*x)
        first = torch.autograd.grad(h.sin().sum() + final.sin().sum(), x, create_graph=True)
        return torch.autograd.grad(sum(g.sin().sum() for g in first), x, create_graph=True)

    assert gradcheck(second, inputs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradient_of_the_final_state_only(case: Case):
    """The gradient of the final state reaches all inputs even if no output is used."""
    inputs = leaves(case, {})
    _, final = case.scan(*inputs)
    _, expected = case.loop(*inputs)
    torch.testing.assert_close(
        torch.autograd.grad(final.sum(), inputs), torch.autograd.grad(expected.sum(), inputs)
    )


OPS = {
    "block_scan": (PLAIN[0], ()),
    "companion_scan": (PLAIN[2], ()),
    "gated_block_scan": (GATED_BLOCK[0], ("softmax",)),
    "gated_companion_scan": (GATED_COMPANION[0], ("softmax",)),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("name", OPS)
def test_opcheck(name: str, settings: dict, unchecked):
    case, gate = OPS[name]
    X, x, h0 = leaves(case, settings)
    tail = (settings.get("cu_seqlens"), settings.get("mask"), settings.get("reverse", False), *gate)
    op = getattr(torch.ops.statemix, name)
    torch.library.opcheck(op, (X, x, h0, *tail))
    torch.library.opcheck(op, (X, x, None, *tail))
    backward = getattr(torch.ops.statemix, f"{name}_backward")
    with torch.no_grad():
        h, final = op(X, x, h0, *tail)
        saved = (X.detach(), x.detach(), h) if gate else (X.detach(), h)
        torch.library.opcheck(
            backward, (torch.randn_like(h), torch.randn_like(final), *saved, h0.detach(), *tail)
        )


@pytest.mark.parametrize("case", EACH_SCAN, ids=str)
def test_results_are_reproducible(case: Case):
    def run():
        inputs = [x.float().requires_grad_() for x in case.inputs(2, 50, 3, 4, seed=5)]
        h, final = case.scan(*inputs)
        return h, final, *torch.autograd.grad(h.sum() + final.sum(), inputs)

    torch.testing.assert_close(run(), run(), rtol=0, atol=0)


@pytest.mark.parametrize("case", EACH_SCAN, ids=str)
def test_memory_is_linear_in_time(case: Case):
    """Twice the steps allocate twice the bytes, forward and backward, so nothing grows with T²."""

    def allocated(T: int) -> int:
        inputs = [x.requires_grad_() for x in case.inputs(1, T, 2, 3)]
        with torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profile:
            h, final = case.scan(*inputs)
            torch.autograd.grad(h.sum() + final.sum(), inputs)
        return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())

    assert allocated(128) < 2.2 * allocated(64)


# torch.func itself uses the deprecated function.
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("case", EACH_SCAN, ids=str)
def test_transforms_of_torch_func(case: Case):
    """Forward mode, reverse mode and vmap of torch.func agree with autograd, in both directions."""
    inputs = tuple(case.inputs(2, 4, 2, 3))
    tangents = tuple(torch.randn_like(x) for x in inputs)

    def loss(*x):
        h, final = case.scan(*x)
        return h.sin().sum() + final.sin().sum()

    leaves = [x.clone().requires_grad_() for x in inputs]
    expected = torch.autograd.grad(loss(*leaves), leaves)
    torch.testing.assert_close(torch.func.grad(loss, argnums=(0, 1, 2))(*inputs), expected)

    slope = sum((g * t).sum() for g, t in zip(expected, tangents, strict=True))
    torch.testing.assert_close(torch.func.jvp(loss, inputs, tangents)[1], slope)
    with torch.autograd.forward_ad.dual_level():
        duals = [
            torch.autograd.forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)
        ]
        torch.testing.assert_close(
            torch.autograd.forward_ad.unpack_dual(loss(*duals)).tangent, slope
        )

    apart = torch.func.vmap(
        torch.func.grad(lambda *x: loss(*(y[None] for y in x)), argnums=(0, 1, 2))
    )(*inputs)
    torch.testing.assert_close(apart, expected)
